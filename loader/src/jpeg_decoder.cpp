#include <csetjmp>
#include <cstdio>

#include "headrace/error.h"
#include "headrace/jpeg.h"

// jpeglib.h wants size_t and FILE declared before it.
#include <jpeglib.h>

namespace headrace {
namespace {

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
  /// To be called after read_header. `row` is scratch memory for one row of CMYK.
  bool read_pixels(std::uint8_t* pixels, std::uint8_t* cmyk_row) noexcept;

  ImageSize size() const {
    return {static_cast<int>(info_.image_width), static_cast<int>(info_.image_height)};
  }
  bool is_cmyk() const { return info_.out_color_space == JCS_CMYK; }
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

bool Decompression::read_pixels(std::uint8_t* pixels, std::uint8_t* cmyk_row) noexcept {
  if (setjmp(way_out_) != 0) return false;
  jpeg_start_decompress(&info_);
  const std::size_t stride = std::size_t{info_.output_width} * 3;
  while (info_.output_scanline < info_.output_height) {
    JSAMPROW rgb_row = pixels + info_.output_scanline * stride;
    if (is_cmyk()) {
      jpeg_read_scanlines(&info_, &cmyk_row, 1);
      cmyk_to_rgb(cmyk_row, info_.output_width, rgb_row);
    } else {
      jpeg_read_scanlines(&info_, &rgb_row, 1);
    }
  }
  jpeg_finish_decompress(&info_);  // warns about entropy-coded data that was not used
  return true;
}

[[noreturn]] void throw_doubt(const Decompression& decompression) {
  throw Error(ErrorCode::kDoubtfulData, decompression.message(), {.stage = "decode"});
}

}  // namespace

void RgbImage::reshape(ImageSize new_size) {
  size = new_size;
  pixels.resize(static_cast<std::size_t>(size.width) * static_cast<std::size_t>(size.height) * 3);
}

struct JpegDecoder::Impl {
  std::vector<std::uint8_t> cmyk_row;
};

JpegDecoder::JpegDecoder() : impl_(std::make_unique<Impl>()) {}
JpegDecoder::~JpegDecoder() = default;
JpegDecoder::JpegDecoder(JpegDecoder&&) noexcept = default;
JpegDecoder& JpegDecoder::operator=(JpegDecoder&&) noexcept = default;

void JpegDecoder::decode(std::span<const std::byte> file, RgbImage& out) {
  Decompression decompression;
  if (!decompression.read_header(file)) throw_doubt(decompression);
  out.reshape(decompression.size());
  if (decompression.is_cmyk()) {
    impl_->cmyk_row.resize(static_cast<std::size_t>(out.size.width) * kCmykChannels);
  }
  if (!decompression.read_pixels(out.pixels.data(), impl_->cmyk_row.data())) {
    throw_doubt(decompression);
  }
}

}  // namespace headrace
