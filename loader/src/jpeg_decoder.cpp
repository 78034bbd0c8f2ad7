#include "jpeg_decoder.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>

#include "headrace/error.h"

// jpeglib.h wants size_t and FILE declared before it.
#include <jpeglib.h>
#if HEADRACE_JPEGINT
#include <jpegint.h>
#endif

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

  // In this order. Each is false if libjpeg failed or warned; message() then says how.
  bool read_header(std::span<const std::byte> file) noexcept;
  bool start() noexcept;
  /// `row` is scratch memory for a row of the whole image.
  bool read_pixels(const Region& region, std::uint8_t* row, std::uint8_t* pixels) noexcept;

  /// After start(): has `entropy`, which must outlive the object, read the Huffman codes, if it can
  /// do so for this file.
  void use(JpegEntropyDecoder& entropy);
  /// After read_pixels(), which then counts for nothing: the decoder has given up.
  bool gave_up() const { return gave_up_; }
  bool uses_own_entropy() const { return entropy_ != nullptr; }

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
  JpegEntropyDecoder* entropy_ = nullptr;
  bool gave_up_ = false;
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

bool Decompression::start() noexcept {
  if (setjmp(way_out_) != 0) return false;
  jpeg_start_decompress(&info_);
  return true;
}

#if HEADRACE_JPEGINT

HuffmanCode code_of(const JHUFF_TBL& table) {
  HuffmanCode code;
  std::ranges::copy(table.bits, code.counts.begin());
  std::ranges::copy(table.huffval, code.symbols.begin());
  return code;
}

/// libjpeg calls its modules through tables of functions, and jpegint.h, though internal, is
/// installed. Its own decoder of the file has been set up, but not yet called.
void Decompression::use(JpegEntropyDecoder& entropy) {
  if (jpeg_has_multiple_scans(&info_) || info_.progressive_mode || info_.arith_code ||
      info_.blocks_in_MCU > static_cast<int>(kJpegMcuBlocks)) {
    return;
  }
  JpegScan scan{.data = {info_.src->next_input_byte, info_.src->bytes_in_buffer},
                .mcus_per_row = info_.MCUs_per_row,
                .restart_interval = info_.restart_interval,
                .block_count = static_cast<std::size_t>(info_.blocks_in_MCU)};
  std::array<HuffmanCode, 2 * kJpegTables> codes;
  for (std::size_t i = 0; i < scan.block_count; ++i) {
    const int member = info_.MCU_membership[i];
    const jpeg_component_info& component = *info_.cur_comp_info[member];
    const auto dc = static_cast<std::size_t>(component.dc_tbl_no);
    const auto ac = static_cast<std::size_t>(component.ac_tbl_no);
    scan.blocks[i] = {static_cast<std::size_t>(member), dc, ac};
    if (scan.dc[dc] == nullptr) {
      codes[dc] = code_of(*info_.dc_huff_tbl_ptrs[dc]);
      scan.dc[dc] = &codes[dc];
    }
    if (scan.ac[ac] == nullptr) {
      codes[kJpegTables + ac] = code_of(*info_.ac_huff_tbl_ptrs[ac]);
      scan.ac[ac] = &codes[kJpegTables + ac];
    }
  }
  if (!entropy.begin(scan)) return;
  entropy_ = &entropy;
  info_.entropy->decode_mcu = [](j_decompress_ptr info, JBLOCKROW* blocks) -> boolean {
    static_cast<Decompression*>(info->client_data)->entropy_->next(blocks);
    return TRUE;
  };
}

#else

void Decompression::use(JpegEntropyDecoder&) {}

#endif

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
  const auto left = static_cast<JDIMENSION>(region.left);
  const auto width = static_cast<JDIMENSION>(region.width);
  const Columns wanted = columns_for(region, size().width);
  JDIMENSION first = wanted.first;
  JDIMENSION count = wanted.end - wanted.first;
  if (count < info_.output_width) {
    jpeg_crop_scanline(&info_, &first, &count);
    if (entropy_ != nullptr) {
      const auto mcu_width = static_cast<JDIMENSION>(
          DCTSIZE * (info_.num_components == 1 ? 1 : info_.max_h_samp_factor));
      entropy_->need_columns(first / mcu_width, (first + count + mcu_width - 1) / mcu_width);
    }
  }
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
  if (entropy_ != nullptr && !entropy_->finish()) {
    gave_up_ = true;
    return true;
  }
  if (info_.output_scanline == info_.output_height) {
    if (entropy_ != nullptr) {
      if (!entropy_->at_end()) {
        gave_up_ = true;
        return true;
      }
      info_.src->next_input_byte += entropy_->scan_bytes();
      info_.src->bytes_in_buffer -= entropy_->scan_bytes();
    }
    jpeg_finish_decompress(&info_);  // warns about entropy-coded data that was not used
  } else {
    jpeg_abort_decompress(&info_);
  }
  return true;
}

[[noreturn]] void throw_doubt(const Decompression& decompression) {
  throw Error(ErrorCode::kDoubtfulData, decompression.message(), {.stage = "decode"});
}

/// A gray picture of 3 x 3 blocks.
constexpr auto kTrialFile =
    [] {
      constexpr std::uint8_t kBefore[] = {0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0};
      // clang-format off
  constexpr std::uint8_t kAfter[] = {
      0xFF, 0xC0, 0, 11, 8, 0, 24, 0, 24, 1, 1, 0x11, 0,  // frame
      0xFF, 0xC4, 0, 42,                                  // codes
      0x00, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0,
      0x10, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x02, 0x31, 0x15,
      0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0,  // scan
      0x55, 0xC4, 0x1E, 0x6A, 0x2F, 0x7D, 0x67, 0x0C, 0x8B, 0x94, 0x3A, 0xD7,
      0xFF, 0xD9};
      // clang-format on
      std::array<std::uint8_t, sizeof kBefore + DCTSIZE2 + sizeof kAfter> file{};
      file.fill(9);  // steps of quantization
      std::ranges::copy(kBefore, file.begin());
      std::ranges::copy(kAfter, file.end() - std::ssize(kAfter));
      return file;
    }();

}  // namespace

bool RegionDecoder::has_own_path() {
  static const bool kHas = [] {
    try {
      RegionDecoder decoder;
      RgbImage own;
      RgbImage plain;
      const auto file = std::as_bytes(std::span(kTrialFile));
      for (const Region& region : {Region{0, 0, 24, 24}, Region{17, 15, 5, 4}}) {
        if (decoder.decode_by(EntropyPath::kOwn, file, region, own) != EntropyPath::kOwn) {
          return false;
        }
        decoder.decode_by(EntropyPath::kLibjpeg, file, region, plain);
        if (own.pixels != plain.pixels) return false;
      }
      return true;
    } catch (const Error&) {
      return false;
    }
  }();
  return kHas;
}

EntropyPath RegionDecoder::decode(std::span<const std::byte> file,
                                  const std::optional<Region>& region, RgbImage& out,
                                  EntropyPath path) {
  return decode_by(has_own_path() ? path : EntropyPath::kLibjpeg, file, region, out);
}

EntropyPath RegionDecoder::decode_by(EntropyPath path, std::span<const std::byte> file,
                                     const std::optional<Region>& region, RgbImage& out) {
  Decompression decompression;
  if (!decompression.read_header(file)) throw_doubt(decompression);
  const ImageSize size = decompression.size();
  const Region wanted = Region::in(size, region);
  out.reshape(wanted.size());
  row_.resize(decompression.row_bytes());
  if (!decompression.start()) throw_doubt(decompression);
  if (path == EntropyPath::kOwn) decompression.use(entropy_);
  const bool intact = decompression.read_pixels(wanted, row_.data(), out.pixels.data());
  if (!decompression.uses_own_entropy()) {
    if (!intact) throw_doubt(decompression);
    return EntropyPath::kLibjpeg;
  }
  if (!intact || decompression.gave_up()) {
    return decode_by(EntropyPath::kLibjpeg, file, region, out);
  }
  return EntropyPath::kOwn;
}

struct JpegDecoder::Impl {
  RegionDecoder decoder;
};

JpegDecoder::JpegDecoder() : impl_(std::make_unique<Impl>()) {}
JpegDecoder::~JpegDecoder() = default;
JpegDecoder::JpegDecoder(JpegDecoder&&) noexcept = default;
JpegDecoder& JpegDecoder::operator=(JpegDecoder&&) noexcept = default;

void JpegDecoder::decode(std::span<const std::byte> file, const std::optional<Region>& region,
                         RgbImage& out) {
  impl_->decoder.decode(file, region, out);
}

}  // namespace headrace
