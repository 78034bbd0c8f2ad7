// The part of the DLPack ABI (version 0.x, github.com/dmlc/dlpack) that hands a batch to torch
// without a copy: field for field as its specification lays them out.
#pragma once

#include <cstdint>
#include <memory>

#include "headrace/api.h"
#include "headrace/field.h"

namespace HEADRACE_API headrace {
namespace dlpack {

struct Device {
  std::int32_t type;
  std::int32_t id;
};
inline constexpr std::int32_t kCpu = 1;
inline constexpr std::int32_t kCuda = 2;

struct DataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};
inline constexpr std::uint8_t kInt = 0;
inline constexpr std::uint8_t kUint = 1;
inline constexpr std::uint8_t kFloat = 2;
inline constexpr std::uint8_t kBfloat = 4;

struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // null: C order
  std::uint64_t byte_offset;
};

struct ManagedTensor {
  Tensor tensor;
  void* owner;
  void (*deleter)(ManagedTensor* self);
};

/// A tensor of `rows` rows at `data`, which `memory` keeps alive until the deleter is called: on
/// whatever thread, perhaps when Python's interpreter is gone.
ManagedTensor* make_tensor(const FieldSpec& spec, std::int64_t rows, void* data, Device device,
                           std::shared_ptr<void> memory);

}  // namespace dlpack
}  // namespace headrace
