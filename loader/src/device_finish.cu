// The kernels: four forms of finish_pixel(), under names that device_kernel.cpp looks up.
#include "device_finish.h"

namespace {

template <typename Element, bool kChannelsLast>
__device__ void finish(const headrace::FinishArguments& arguments) {
  __shared__ Element table[3 * 256];
  const Element* source = static_cast<const Element*>(arguments.table);
  for (unsigned i = threadIdx.x; i < 3 * 256; i += blockDim.x) table[i] = source[i];
  __syncthreads();
  const long long step = static_cast<long long>(gridDim.x) * blockDim.x;
  long long index = static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; index < arguments.pixel_count; index += step) {
    headrace::finish_pixel<Element, kChannelsLast>(arguments, table, index);
  }
}

}  // namespace

extern "C" __global__ void headrace_finish_16bit_nchw(headrace::FinishArguments arguments) {
  finish<unsigned short, false>(arguments);
}
extern "C" __global__ void headrace_finish_16bit_nhwc(headrace::FinishArguments arguments) {
  finish<unsigned short, true>(arguments);
}
extern "C" __global__ void headrace_finish_32bit_nchw(headrace::FinishArguments arguments) {
  finish<unsigned int, false>(arguments);
}
extern "C" __global__ void headrace_finish_32bit_nhwc(headrace::FinishArguments arguments) {
  finish<unsigned int, true>(arguments);
}
