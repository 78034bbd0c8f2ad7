// A transform in two parts: pixels here, and what another processor makes of them.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "headrace/error.h"
#include "transform_impl.h"

namespace headrace {
namespace {

constexpr std::size_t kChannels = 3;
constexpr std::size_t kValues = 256;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message, {.stage = "transform"});
}

template <typename T>
std::vector<std::byte> bytes_of(const ValueTable<T>& table) {
  const auto* first = reinterpret_cast<const std::byte*>(&table);
  return {first, first + sizeof table};
}

/// For one channel: the values of pixels, in the order of what they become.
template <typename T>
class InverseTable {
 public:
  explicit InverseTable(const std::array<T, kValues>& forward) : forward_(forward) {
    std::iota(order_.begin(), order_.end(), std::uint8_t{0});
    std::ranges::sort(order_, {}, [this](std::uint8_t value) { return forward_[value]; });
  }

  std::uint8_t operator()(T bits) const {
    const auto becomes = [this](std::uint8_t value) { return forward_[value]; };
    const auto found = std::ranges::lower_bound(order_, bits, {}, becomes);
    if (found == order_.end() || forward_[*found] != bits) {
      refuse("an image with values that this pipeline gives to no pixel");
    }
    return *found;
  }

 private:
  const std::array<T, kValues>& forward_;
  std::array<std::uint8_t, kValues> order_{};
};

template <typename T>
void invert(const ValueTable<T>& table, const FieldSpec& spec, std::span<const std::byte> finished,
            std::span<std::byte> pixels) {
  const std::size_t count = pixels.size() / kChannels;
  const bool channels_last = spec.memory_format == MemoryFormat::kChannelsLast;
  for (std::size_t channel = 0; channel < kChannels; ++channel) {
    const InverseTable<T> inverse(table[channel]);
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t place = channels_last ? kChannels * i + channel : channel * count + i;
      T bits{};
      std::memcpy(&bits, finished.data() + place * sizeof(T), sizeof(T));
      pixels[kChannels * i + channel] = std::byte{inverse(bits)};
    }
  }
}

}  // namespace

Transform Transform::split() const {
  if (!splits()) refuse("split: the result is uint8 as it is, or of one channel");
  auto pixels = std::make_shared<Impl>(*impl_);
  pixels->finish =
      PixelFinish{impl_->output, dtype_bytes(impl_->output.dtype) == sizeof(std::uint16_t)
                                     ? bytes_of(impl_->values_16)
                                     : bytes_of(impl_->values_32)};
  pixels->output.dtype = Dtype::kUint8;
  pixels->output.memory_format = MemoryFormat::kChannelsLast;
  for (auto& channel : pixels->values_8) {
    std::iota(channel.begin(), channel.end(), std::uint8_t{0});
  }
  return Transform(std::move(pixels));
}

bool Transform::splits() const noexcept {
  const FieldSpec& field = impl_->output;
  return field.dtype != Dtype::kUint8 && field.shape[0] == std::int64_t{kChannels};
}

const PixelFinish* Transform::finish() const noexcept {
  return impl_->finish ? &*impl_->finish : nullptr;
}

void Transform::unfinish(std::span<const std::byte> finished, std::span<std::byte> pixels) const {
  if (!impl_->finish) refuse("unfinish: this transform is whole");
  const FieldSpec& whole = impl_->finish->output;
  if (finished.size() != whole.row_bytes() || pixels.size() != impl_->output.row_bytes()) {
    refuse("unfinish: the sizes are another transform's");
  }
  if (dtype_bytes(whole.dtype) == sizeof(std::uint16_t)) {
    invert(impl_->values_16, whole, finished, pixels);
  } else {
    invert(impl_->values_32, whole, finished, pixels);
  }
}

}  // namespace headrace
