// Codes of 4 and 8 bits as floats.

#define MINUS_INFINITY __int_as_float(0xff800000)

// Code `j` of a word as a float, divided by `unit(j)`: its bits become the last of a float of 2^23.
template <int BITS>
__device__ __forceinline__ float code(unsigned int word, int j) {
  if (BITS == 8) {
    return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440u + (j & 3))) - 8388608.0f;
  }
  unsigned int half = j < 4 ? word : word >> 16;
  return __uint_as_float((half & (15u << (4 * (j & 3)))) | 0x4B000000u) - 8388608.0f;
}

template <int BITS>
__device__ __forceinline__ float unit(int j) {
  return BITS == 8 ? 1.0f : 1.0f / float(1 << (4 * (j & 3)));
}

template <int N>
struct alignas(4 * N) Words {
  unsigned int at[N];
};
