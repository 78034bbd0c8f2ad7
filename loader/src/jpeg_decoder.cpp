#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "headrace/error.h"
#include "headrace/jpeg.h"

// jpeglib.h wants size_t and FILE declared before it.
#include <jpeglib.h>

namespace headrace {
namespace {

constexpr std::size_t kRgbChannels = 3;
constexpr std::size_t kCmykChannels = 4;

/// One decompression of one file. A new one for each, since libjpeg keeps the tables of the last
/// file and would apply them to a file that lacks its own.
///
/// libjpeg reports by leaving its error handler for good. The jump back skips destructors, so the
/// functions that call setjmp, and all below them, hold nothing that has one.
class Decompression {
 public:
  Decompression() noexcept {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = [](j_common_ptr info) { escape(info); };
    // Pillow goes on after a warning, but with pixels that depend on the version of libjpeg.
    errors_.emit_message = [](j_common_ptr info, int level) {
      if (level < 0) escape(info);
    };
  }
  ~Decompression() { jpeg_destroy_decompress(&info_); }
  Decompression(const Decompression&) = delete;
  Decompression& operator=(const Decompression&) = delete;

  /// False if libjpeg failed or warned; message() then says how.
  bool read_header(std::span<const std::byte> file) noexcept;
  /// To be called after read_header. `row` is scratch memory for a row of the whole image.
  bool read_pixels(const Region& region, std::uint8_t* row, std::uint8_t* pixels) noexcept;

  ImageSize size() const {
    return {static_cast<int>(info_.image_width), static_cast<int>(info_.image_height)};
  }
  bool is_cmyk() const { return info_.out_color_space == JCS_CMYK; }
  std::size_t row_bytes() const {
    return std::size_t{info_.image_width} * (is_cmyk() ? kCmykChannels : kRgbChannels);
  }
  const char* message() const { return message_; }

 private:
  [[noreturn]] static void escape(j_common_ptr info) {
    auto* self = static_cast<Decompression*>(info->client_data);
    info->err->format_message(info, self->message_);
    std::longjmp(self->way_out_, 1);
  }

  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  std::jmp_buf way_out_;
  char message_[JMSG_LENGTH_MAX] = "";
};

bool Decompression::read_header(std::span<const std::byte> file) noexcept {
  if (setjmp(way_out_) != 0) return false;
  jpeg_create_decompress(&info_);
  jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&info_, TRUE);
  info_.out_color_space = info_.num_components == kCmykChannels ? JCS_CMYK : JCS_RGB;
  return true;
}

/// Pillow takes every CMYK file for an inverted one, as Adobe writes them, and mixes in integers.
void cmyk_to_rgb(const std::uint8_t* inverted, std::size_t pixel_count, std::uint8_t* rgb) {
  for (std::size_t i = 0; i < pixel_count; ++i, inverted += kCmykChannels, rgb += 3) {
    const unsigned white = inverted[3];
    for (int channel = 0; channel < 3; ++channel) {
      const unsigned product = (255U - inverted[channel]) * white + 128;
      const unsigned ink = (product + (product >> 8)) >> 8;  // product / 255, rounded
      rgb[channel] = static_cast<std::uint8_t>(white - ink);
    }
  }
}

struct Columns {
  JDIMENSION first;
  JDIMENSION end;
};

/// At the edges of what is decoded chroma is not interpolated as it is within the image, so one
/// pixel more on both sides. And libjpeg interpolates wrongly when cropping leaves less than three
/// samples.
Columns columns_for(const Region& region, int image_width) {
  constexpr int kFewest = 8;
  const int first = std::clamp(region.left - 1, 0, std::max(image_width - kFewest, 0));
  const int end = std::max(region.left + region.width + 1, first + kFewest);
  return {static_cast<JDIMENSION>(first), static_cast<JDIMENSION>(std::min(end, image_width))};
}

/// Damage below the region is not noticed, and need not be. inspect_jpeg() has seen that no marker
/// is amiss there, so what is left to find is bad codes, at which libjpeg warns and goes on: Pillow
/// gives pixels for such a file, and those of the region come from the data before. (A file of
/// several scans is read to its end by jpeg_start_decompress, so that it has nothing "below".)
bool Decompression::read_pixels(const Region& region, std::uint8_t* row,
                                std::uint8_t* pixels) noexcept {
  if (setjmp(way_out_) != 0) return false;
  jpeg_start_decompress(&info_);
  const auto left = static_cast<JDIMENSION>(region.left);
  const auto width = static_cast<JDIMENSION>(region.width);
  const Columns wanted = columns_for(region, size().width);
  JDIMENSION first = wanted.first;
  JDIMENSION count = wanted.end - wanted.first;
  if (count < info_.output_width) jpeg_crop_scanline(&info_, &first, &count);
  if (region.top > 0) jpeg_skip_scanlines(&info_, static_cast<JDIMENSION>(region.top));

  const std::size_t stride = width * kRgbChannels;
  for (int y = 0; y < region.height; ++y) {
    std::uint8_t* const rgb = pixels + static_cast<std::size_t>(y) * stride;
    jpeg_read_scanlines(&info_, &row, 1);
    if (is_cmyk()) {
      cmyk_to_rgb(row + (left - first) * kCmykChannels, width, rgb);
    } else {
      std::memcpy(rgb, row + (left - first) * kRgbChannels, stride);
    }
  }
  if (info_.output_scanline == info_.output_height) {
    jpeg_finish_decompress(&info_);  // warns about entropy-coded data that was not used
  } else {
    jpeg_abort_decompress(&info_);
  }
  return true;
}

[[noreturn]] void throw_doubt(const Decompression& decompression) {
  throw Error(ErrorCode::kDoubtfulData, decompression.message(), {.stage = "decode"});
}

}  // namespace

struct JpegDecoder::Impl {
  std::vector<std::uint8_t> row;
};

JpegDecoder::JpegDecoder() : impl_(std::make_unique<Impl>()) {}
JpegDecoder::~JpegDecoder() = default;
JpegDecoder::JpegDecoder(JpegDecoder&&) noexcept = default;
JpegDecoder& JpegDecoder::operator=(JpegDecoder&&) noexcept = default;

void JpegDecoder::decode(std::span<const std::byte> file, const std::optional<Region>& region,
                         RgbImage& out) {
  Decompression decompression;
  if (!decompression.read_header(file)) throw_doubt(decompression);
  const ImageSize size = decompression.size();
  const Region wanted = region.value_or(Region::whole(size));
  if (!wanted.inside(size)) {
    throw Error(ErrorCode::kInvalidArgument, "a region that is not part of the image",
                {.stage = "decode"});
  }
  out.reshape(wanted.size());
  impl_->row.resize(decompression.row_bytes());
  if (!decompression.read_pixels(wanted, impl_->row.data(), out.pixels.data())) {
    throw_doubt(decompression);
  }
}

}  // namespace headrace
