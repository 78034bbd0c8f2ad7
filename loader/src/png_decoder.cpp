#include <png.h>

#include <csetjmp>
#include <cstring>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "png_file.h"

namespace headrace {
namespace {

constexpr std::size_t kRgbChannels = 3;

/// One decompression of one file.
///
/// libpng reports by leaving its error handler for good. The jump back skips destructors, so the
/// functions that call setjmp, and all below them, hold nothing that has one.
class Decompression {
 public:
  explicit Decompression(const PngParts& parts) noexcept : parts_(parts) {
    png_ = png_create_read_struct(
        PNG_LIBPNG_VER_STRING, this,
        [](png_structp png, png_const_charp text) { escape(png, text); },
        // A warning is a doubt, too: Pillow does without libpng.
        [](png_structp png, png_const_charp text) { escape(png, text); });
    info_ = png_ == nullptr ? nullptr : png_create_info_struct(png_);
  }
  ~Decompression() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Decompression(const Decompression&) = delete;
  Decompression& operator=(const Decompression&) = delete;

  /// False if libpng failed or warned; message() then says how.
  bool read_header() noexcept;
  /// To be called after read_header.
  /// @param rows  scratch memory for the rows of the whole image: for each if interlaced(), for one
  ///              otherwise.
  bool read_pixels(const Region& region, png_bytep* rows, std::uint8_t* pixels) noexcept;

  ImageSize size() const { return size_; }
  bool interlaced() const { return interlaced_; }
  const char* message() const { return message_; }

 private:
  [[noreturn]] static void escape(png_structp png, png_const_charp text) {
    auto* self = static_cast<Decompression*>(png_get_error_ptr(png));
    std::strncpy(self->message_, text, sizeof self->message_ - 1);
    std::longjmp(self->way_out_, 1);
  }
  void give(png_bytep to, std::size_t size);

  const PngParts& parts_;
  std::size_t part_ = 0;
  std::size_t given_ = 0;  // of the part
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  ImageSize size_;
  bool interlaced_ = false;
  std::jmp_buf way_out_;
  char message_[128] = "out of memory";
};

void Decompression::give(png_bytep to, std::size_t size) {
  while (size > 0) {
    if (part_ == parts_.size()) png_error(png_, "the file is cut off");
    const auto left = parts_[part_].subspan(given_);
    const std::size_t count = std::min(size, left.size());
    if (count > 0) std::memcpy(to, left.data(), count);
    to += count;
    size -= count;
    given_ += count;
    if (count == left.size()) {
      ++part_;
      given_ = 0;
    }
  }
}

bool Decompression::read_header() noexcept {
  if (info_ == nullptr) return false;
  if (setjmp(way_out_) != 0) return false;
  // The limits are inspect_png()'s.
  png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);
  png_set_read_fn(png_, this, [](png_structp png, png_bytep to, std::size_t size) {
    static_cast<Decompression*>(png_get_io_ptr(png))->give(to, size);
  });
  png_read_info(png_, info_);
  size_ = {static_cast<int>(png_get_image_width(png_, info_)),
           static_cast<int>(png_get_image_height(png_, info_))};
  interlaced_ = png_get_interlace_type(png_, info_) != PNG_INTERLACE_NONE;
  // Everything to 8-bit RGB: the high byte of 16 bits, no alpha.
  png_set_expand(png_);
  png_set_strip_16(png_);
  png_set_gray_to_rgb(png_);
  png_set_strip_alpha(png_);
  png_set_interlace_handling(png_);
  png_read_update_info(png_, info_);
  if (png_get_rowbytes(png_, info_) != static_cast<std::size_t>(size_.width) * kRgbChannels) {
    png_error(png_, "not RGB");
  }
  return true;
}

bool Decompression::read_pixels(const Region& region, png_bytep* rows,
                                std::uint8_t* pixels) noexcept {
  if (setjmp(way_out_) != 0) return false;
  const std::size_t stride = static_cast<std::size_t>(region.width) * kRgbChannels;
  const std::size_t left = static_cast<std::size_t>(region.left) * kRgbChannels;
  if (interlaced_) png_read_image(png_, rows);
  for (int y = 0; y < size_.height; ++y) {
    png_bytep row = interlaced_ ? rows[y] : rows[0];
    if (!interlaced_) png_read_row(png_, row, nullptr);
    if (y < region.top || y >= region.top + region.height) continue;
    std::memcpy(pixels + static_cast<std::size_t>(y - region.top) * stride, row + left, stride);
  }
  png_read_end(png_, nullptr);  // warns of image data that was not used, and of colors too many
  return true;
}

[[noreturn]] void throw_doubt(const Decompression& decompression) {
  throw Error(ErrorCode::kDoubtfulData, decompression.message(), {.stage = "decode"});
}

}  // namespace

struct PngDecoder::Impl {
  std::vector<std::uint8_t> image;
  std::vector<png_bytep> rows;
};

PngDecoder::PngDecoder() : impl_(std::make_unique<Impl>()) {}
PngDecoder::~PngDecoder() = default;
PngDecoder::PngDecoder(PngDecoder&&) noexcept = default;
PngDecoder& PngDecoder::operator=(PngDecoder&&) noexcept = default;

void PngDecoder::decode(std::span<const std::byte> file, const std::optional<Region>& region,
                        RgbImage& out) {
  const PngParts parts = png_parts(file);
  Decompression decompression(parts);
  if (!decompression.read_header()) throw_doubt(decompression);
  const ImageSize size = decompression.size();
  const Region wanted = Region::in(size, region);
  out.reshape(wanted.size());
  const std::size_t stride = static_cast<std::size_t>(size.width) * kRgbChannels;
  impl_->rows.resize(decompression.interlaced() ? static_cast<std::size_t>(size.height) : 1);
  impl_->image.resize(impl_->rows.size() * stride);
  for (std::size_t y = 0; y < impl_->rows.size(); ++y) {
    impl_->rows[y] = impl_->image.data() + y * stride;
  }
  if (!decompression.read_pixels(wanted, impl_->rows.data(), out.pixels.data())) {
    throw_doubt(decompression);
  }
}

}  // namespace headrace
