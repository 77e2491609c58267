// The body of a kernel whose signature MLX writes: what one part of the keys comes to, for the queries
// of one KV head of one row. A block of THREADS takes a part; `mask`, `queries` and the six arrays of
// codes are read where they are. Threads take keys each for the scores, and then words of the values.
//
// Grid: [parts, kv_heads * tiles, rows].

constexpr int KEY_CODES = 32 / KEY_BITS, VALUE_CODES = 32 / VALUE_BITS;
constexpr int KEY_WORDS = DIM / KEY_CODES, VALUE_WORDS = VALUE_DIM / VALUE_CODES;
constexpr int KEY_GROUPS = DIM / KEY_GROUP, GROUP_WORDS = KEY_GROUP / KEY_CODES;
constexpr int STRIDES = THREADS / VALUE_WORDS, PER_THREAD = PART / THREADS;
constexpr int VECTOR = GROUP_WORDS % 4 == 0 && KEY_WORDS % 4 == 0 ? 4 : 1;
constexpr int ASKED = TILE * DIM, SUMS = STRIDES * TILE * VALUE_DIM;
__shared__ __align__(16) float shared[ASKED > SUMS ? ASKED : SUMS];
__shared__ __align__(16) float weights[PART * TILE];
__shared__ float group_sums[TILE * KEY_GROUPS];

const int part = blockIdx.x, thread = threadIdx.x, row = blockIdx.z;
const int kv_heads = key_codes_shape[2], tokens = queries_shape[2];
const int repeats = queries_shape[1] / kv_heads, asked_queries = repeats * tokens;
const int tiles = gridDim.y / kv_heads, kv_head = blockIdx.y / tiles, tile = blockIdx.y % tiles;
const int extent = key_codes_shape[3], first = part * PART;
const int count = min(PART, extent - first);
const int parts = gridDim.x, first_query = tile * TILE;
const long long place = ((long long)row * gridDim.y + blockIdx.y) * parts + part;

// Which of the keys each query sees.
bool any = false;
for (int i = thread; i < PART * TILE; i += THREADS) {
  const int key = i / TILE, query = first_query + i % TILE;
  const bool sees = key < count && query < asked_queries &&
      mask[row * mask_strides[0] + (query % tokens) * mask_strides[2] +
           (first + key) * mask_strides[3]];
  weights[i] = sees ? 0.0f : MINUS_INFINITY;
  any |= sees;
}
if (!__syncthreads_or(any)) {
  if (thread < TILE) {
    maxima[place * TILE + thread] = MINUS_INFINITY;
    totals[place * TILE + thread] = 0.0f;
  }
  return;
}

// Queries, times the scale and the units of their codes: [KEY_WORDS, TILE, KEY_CODES].
for (int i = thread; i < ASKED; i += THREADS) {
  const int dim = i % DIM, local = i / DIM, query = first_query + local;
  float asked = 0.0f;
  if (query < asked_queries) {
    const int head = kv_head * repeats + query / tokens;
    asked = static_cast<float>(queries[row * queries_strides[0] + head * queries_strides[1] +
        (query % tokens) * queries_strides[2] + dim * queries_strides[3]]) * scale[0];
  }
  shared[((dim / KEY_CODES) * TILE + local) * KEY_CODES + dim % KEY_CODES] = asked;
}
__syncthreads();
for (int i = thread; i < TILE * KEY_GROUPS; i += THREADS) {
  const int local = i % TILE, group = i / TILE;
  float sum = 0.0f;
  for (int w = group * GROUP_WORDS; w < (group + 1) * GROUP_WORDS; ++w) {
    for (int j = 0; j < KEY_CODES; ++j) sum += shared[(w * TILE + local) * KEY_CODES + j];
  }
  group_sums[group * TILE + local] = sum;
}
__syncthreads();
for (int i = thread; i < ASKED; i += THREADS) shared[i] *= unit<KEY_BITS>(i % KEY_CODES);
__syncthreads();

// Scores.
const long long key_at = row * key_codes_strides[1] + kv_head * key_codes_strides[2];
const long long key_scale_at = row * key_scales_strides[1] + kv_head * key_scales_strides[2];
const long long key_bias_at = row * key_biases_strides[1] + kv_head * key_biases_strides[2];
float scores[PER_THREAD][TILE];
const unsigned int* codes[PER_THREAD];
int keys[PER_THREAD];
#pragma unroll
for (int k = 0; k < PER_THREAD; ++k) {
  keys[k] = first + min(thread + k * THREADS, count - 1);
  codes[k] = key_codes + key_at + keys[k] * key_codes_strides[3];
  #pragma unroll
  for (int m = 0; m < TILE; ++m) scores[k][m] = 0.0f;
}
for (int group = 0; group < KEY_GROUPS; ++group) {
  float sums[PER_THREAD][TILE];
  #pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {
    #pragma unroll
    for (int m = 0; m < TILE; ++m) sums[k][m] = 0.0f;
  }
  #pragma unroll
  for (int w = 0; w < GROUP_WORDS; w += VECTOR) {
    Words<VECTOR> words[PER_THREAD];
    #pragma unroll
    for (int k = 0; k < PER_THREAD; ++k) {
      words[k] = *reinterpret_cast<const Words<VECTOR>*>(codes[k] + group * GROUP_WORDS + w);
    }
    #pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const float* asked = shared + (group * GROUP_WORDS + w + v) * TILE * KEY_CODES;
      float numbers[PER_THREAD][KEY_CODES];
      #pragma unroll
      for (int k = 0; k < PER_THREAD; ++k) {
        #pragma unroll
        for (int j = 0; j < KEY_CODES; ++j) numbers[k][j] = code<KEY_BITS>(words[k].at[v], j);
      }
      #pragma unroll
      for (int m = 0; m < TILE; ++m) {
        #pragma unroll
        for (int j = 0; j < KEY_CODES; ++j) {
          const float one = asked[m * KEY_CODES + j];
          #pragma unroll
          for (int k = 0; k < PER_THREAD; ++k) sums[k][m] += numbers[k][j] * one;
        }
      }
    }
  }
  #pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {
    const float by = static_cast<float>(
        key_scales[key_scale_at + keys[k] * key_scales_strides[3] + group]);
    const float more = static_cast<float>(
        key_biases[key_bias_at + keys[k] * key_biases_strides[3] + group]);
    #pragma unroll
    for (int m = 0; m < TILE; ++m) {
      scores[k][m] += sums[k][m] * by + group_sums[group * TILE + m] * more;
    }
  }
}
#pragma unroll
for (int k = 0; k < PER_THREAD; ++k) {
  #pragma unroll
  for (int m = 0; m < TILE; ++m) {
    float& weight = weights[(thread + k * THREADS) * TILE + m];
    if (weight == 0.0f) weight = scores[k][m];
  }
}
__syncthreads();

// Exponentials: a warp takes a query.
for (int m = thread / 32; m < TILE; m += THREADS / 32) {
  float most = MINUS_INFINITY, total = 0.0f;
  for (int key = thread % 32; key < PART; key += 32) most = fmaxf(most, weights[key * TILE + m]);
  for (int by = 16; by; by /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, by));
  for (int key = thread % 32; key < PART; key += 32) {
    const float score = weights[key * TILE + m];
    const float weight = score == MINUS_INFINITY ? 0.0f : exp2f(score - most);
    weights[key * TILE + m] = weight;
    total += weight;
  }
  for (int by = 16; by; by /= 2) total += __shfl_xor_sync(~0u, total, by);
  if (thread % 32 == 0) {
    maxima[place * TILE + m] = most;
    totals[place * TILE + m] = total;
  }
}
__syncthreads();

// Sums of values: a thread takes a word of every STRIDES-th key.
const int word = thread % VALUE_WORDS, begin = thread / VALUE_WORDS;
if (begin < STRIDES) {
  const unsigned int* from = value_codes + row * value_codes_strides[1] +
      kv_head * value_codes_strides[2] + first * value_codes_strides[3] + word;
  const int group = word * VALUE_CODES / VALUE_GROUP;
  const auto* by = value_scales + row * value_scales_strides[1] +
      kv_head * value_scales_strides[2] + first * value_scales_strides[3] + group;
  const auto* more = value_biases + row * value_biases_strides[1] +
      kv_head * value_biases_strides[2] + first * value_biases_strides[3] + group;
  float sums[TILE][VALUE_CODES], added[TILE];
  #pragma unroll
  for (int m = 0; m < TILE; ++m) {
    added[m] = 0.0f;
    #pragma unroll
    for (int j = 0; j < VALUE_CODES; ++j) sums[m][j] = 0.0f;
  }
  #pragma unroll 4
  for (int key = begin; key < count; key += STRIDES) {
    const unsigned int packed = from[key * value_codes_strides[3]];
    const float factor = static_cast<float>(by[key * value_scales_strides[3]]);
    const float offset = static_cast<float>(more[key * value_biases_strides[3]]);
    float numbers[VALUE_CODES];
    #pragma unroll
    for (int j = 0; j < VALUE_CODES; ++j) numbers[j] = code<VALUE_BITS>(packed, j);
    #pragma unroll
    for (int m = 0; m < TILE; ++m) {
      const float weight = weights[key * TILE + m], scaled = weight * factor;
      added[m] += weight * offset;
      #pragma unroll
      for (int j = 0; j < VALUE_CODES; ++j) sums[m][j] += numbers[j] * scaled;
    }
  }
  #pragma unroll
  for (int m = 0; m < TILE; ++m) {
    #pragma unroll
    for (int j = 0; j < VALUE_CODES; ++j) {
      shared[(begin * TILE + m) * VALUE_DIM + word * VALUE_CODES + j] =
          sums[m][j] * unit<VALUE_BITS>(j) + added[m];
    }
  }
}
__syncthreads();
for (int i = thread; i < TILE * VALUE_DIM; i += THREADS) {
  float sum = 0.0f;
  for (int s = 0; s < STRIDES; ++s) sum += shared[s * TILE * VALUE_DIM + i];
  sums_of_parts[place * TILE * VALUE_DIM + i] = sum;
}
