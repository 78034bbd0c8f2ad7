#include "headrace/field.h"

namespace headrace {

std::size_t dtype_bytes(Dtype dtype) noexcept {
  switch (dtype) {
    case Dtype::kUint8:
      return 1;
    case Dtype::kFloat16:
    case Dtype::kBfloat16:
      return 2;
    case Dtype::kFloat32:
      return 4;
    case Dtype::kInt64:
      return 8;
  }
  return 0;  // not reached: the switch is complete
}

std::size_t FieldSpec::row_bytes() const noexcept {
  std::size_t bytes = dtype_bytes(dtype);
  for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

}  // namespace headrace
