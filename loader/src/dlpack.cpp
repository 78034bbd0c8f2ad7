#include "headrace/dlpack.h"

#include <utility>
#include <vector>

namespace headrace::dlpack {
namespace {

struct Owner {
  ManagedTensor managed{};
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  std::shared_ptr<void> memory;
};

DataType type_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::kUint8:
      return {kUint, 8, 1};
    case Dtype::kFloat16:
      return {kFloat, 16, 1};
    case Dtype::kBfloat16:
      return {kBfloat, 16, 1};
    case Dtype::kFloat32:
      return {kFloat, 32, 1};
    case Dtype::kInt64:
      return {kInt, 64, 1};
  }
  return {};
}

}  // namespace

ManagedTensor* make_tensor(const FieldSpec& spec, std::int64_t rows, void* data, Device device,
                           std::shared_ptr<void> memory) {
  auto owner = std::make_unique<Owner>();
  owner->shape = spec.shape;
  owner->shape.insert(owner->shape.begin(), rows);
  if (spec.memory_format == MemoryFormat::kChannelsLast) {
    const std::int64_t channels = owner->shape[1];
    const std::int64_t height = owner->shape[2];
    const std::int64_t width = owner->shape[3];
    owner->strides = {channels * height * width, 1, width * channels, channels};
  }
  owner->memory = std::move(memory);
  Tensor& tensor = owner->managed.tensor;
  tensor.data = data;
  tensor.device = device;
  tensor.dimensions = static_cast<std::int32_t>(owner->shape.size());
  tensor.dtype = type_of(spec.dtype);
  tensor.shape = owner->shape.data();
  if (!owner->strides.empty()) tensor.strides = owner->strides.data();
  owner->managed.owner = owner.get();
  owner->managed.deleter = [](ManagedTensor* self) { delete static_cast<Owner*>(self->owner); };
  return &owner.release()->managed;
}

}  // namespace headrace::dlpack
