// What a batch is made of: named arrays with a constant row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "headrace/api.h"

namespace HEADRACE_API headrace {

enum class Dtype { kUint8, kFloat16, kBfloat16, kFloat32, kInt64 };

/// Bytes of one element.
std::size_t dtype_bytes(Dtype dtype) noexcept;

/// How images lie in memory; the shape is [channels, height, width] either way. The names are
/// torch's.
enum class MemoryFormat {
  kContiguous,    ///< plane after plane
  kChannelsLast,  ///< pixel after pixel
};

/// One field of a sample, e.g. {"image", kFloat32, {3, 224, 224}}. An empty shape is a scalar.
struct FieldSpec {
  std::string name;
  Dtype dtype = Dtype::kUint8;
  std::vector<std::int64_t> shape;
  MemoryFormat memory_format = MemoryFormat::kContiguous;  ///< of images only

  /// Bytes of one sample's row.
  std::size_t row_bytes() const noexcept;
};

}  // namespace headrace
