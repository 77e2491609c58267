// The body of a kernel whose signature MLX writes: joins the parts of one query. A thread takes a
// number of its result, blockDim.x = value_dim.
//
// Grid: [repeats * T, kv_heads, rows].

const int kv_heads = sums_of_parts_shape[1], tiles = sums_of_parts_shape[2];
const int parts = sums_of_parts_shape[3], tile_queries = sums_of_parts_shape[4];
const int query = blockIdx.x, kv_head = blockIdx.y, row = blockIdx.z;
const int repeats = queries_shape[1] / kv_heads, tokens = queries_shape[2];
const long long first =
    ((long long)(row * kv_heads + kv_head) * tiles + query / tile_queries) * parts;
const int local = query % tile_queries;
const float sink = static_cast<float>(
    sinks[(kv_head * repeats + query / tokens) * sinks_strides[0]]) * LOG2_E;
float most = sink, total = 0.0f, sum = 0.0f;
#pragma unroll 8
for (int part = 0; part < parts; ++part) {
  most = fmaxf(most, maxima[(first + part) * tile_queries + local]);
}
#pragma unroll 8
for (int part = 0; part < parts; ++part) {
  const long long at = (first + part) * tile_queries + local;
  // A part of which nothing is seen has no sums.
  const float top = maxima[at], value = sums_of_parts[at * blockDim.x + threadIdx.x];
  const float by = top == MINUS_INFINITY ? 0.0f : exp2f(top - most);
  total += totals[at] * by;
  sum += by > 0.0f ? value * by : 0.0f;
}
if (sink != MINUS_INFINITY) total += exp2f(sink - most);
out[((long long)(row * kv_heads + kv_head) * gridDim.x + query) * blockDim.x + threadIdx.x] =
    total == 0.0f ? 0.0f : sum / total;
