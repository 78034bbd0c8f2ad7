#include <algorithm>
#include <initializer_list>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "headrace/jpeg.h"
#include "jpeg_decoder.h"
#include "support.h"

using headrace::Doubt;
using headrace::ImageSize;
using headrace::test::contains;

namespace {

constexpr std::uint64_t kNoLimit = ~std::uint64_t{0};

using Bytes = std::vector<std::uint8_t>;

Bytes operator+(Bytes left, const Bytes& right) {
  left.insert(left.end(), right.begin(), right.end());
  return left;
}

std::span<const std::byte> as_file(const Bytes& bytes) { return std::as_bytes(std::span(bytes)); }

Bytes segment(std::uint8_t marker, const Bytes& payload) {
  const std::size_t length = payload.size() + 2;
  return Bytes{0xFF, marker, static_cast<std::uint8_t>(length >> 8),
               static_cast<std::uint8_t>(length)} +
         payload;
}

Bytes segment(std::uint8_t marker, const std::string& payload) {
  return segment(marker, Bytes(payload.begin(), payload.end()));
}

const Bytes kStart{0xFF, 0xD8};
const Bytes kEnd{0xFF, 0xD9};

/// Tables of ones, and Huffman codes where the bit 0 means "as before" (DC), "none left" (AC), and
/// the bits 10 mean a DC difference of one bit.
Bytes tables() {
  const Bytes dc{0x00, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  const Bytes ac{0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  return segment(0xDB, Bytes{0} + Bytes(64, 1)) + segment(0xC4, dc + ac);
}

/// One block: 8 x 8 pixels, components named 1, 2, ...
Bytes frame(std::uint8_t marker, std::uint8_t components) {
  Bytes payload{8, 0, 8, 0, 8, components};
  for (std::uint8_t i = 1; i <= components; ++i) payload = payload + Bytes{i, 0x11, 0};
  return segment(marker, payload);
}

/// Gray, 16 x 8 pixels.
Bytes two_blocks() { return segment(0xC0, Bytes{8, 0, 8, 0, 16, 1, 1, 0x11, 0}); }

Bytes scan(std::initializer_list<std::uint8_t> components, const Bytes& range, const Bytes& data) {
  Bytes payload{static_cast<std::uint8_t>(components.size())};
  for (const std::uint8_t id : components) payload = payload + Bytes{id, 0};
  return segment(0xDA, payload + range) + data;
}

const Bytes kWhole{0, 63, 0};
const Bytes kFlatBlock{0x3F};  // 0, 0, filled up with ones

/// All coefficients zero, so that every sample is 128.
Bytes flat_gray() {
  return kStart + tables() + frame(0xC0, 1) + scan({1}, kWhole, kFlatBlock) + kEnd;
}

/// `scans` of one component, with tables and frame around them.
Bytes progressive(const Bytes& scans) { return kStart + tables() + frame(0xC2, 1) + scans + kEnd; }

std::string doubt_about(const Bytes& file, std::uint64_t pixel_limit = kNoLimit) {
  const auto found = headrace::inspect_jpeg(as_file(file), pixel_limit);
  const auto* doubt = std::get_if<Doubt>(&found);
  return doubt == nullptr ? "accepted" : doubt->reason;
}

headrace::RgbImage decode(const Bytes& file) {
  headrace::RgbImage image;
  headrace::JpegDecoder().decode(as_file(file), std::nullopt, image);
  return image;
}

}  // namespace

#ifdef HEADRACE_JPEGINT  // built along with the decoder
TEST_CASE("without jpegint.h libjpeg decodes alone", "[jpeg]") {
  STATIC_REQUIRE(HEADRACE_JPEGINT == 0);
  CHECK_FALSE(headrace::RegionDecoder::has_own_path());
}
#endif

TEST_CASE("inspection gives the size of an intact file", "[jpeg]") {
  const auto found = headrace::inspect_jpeg(as_file(flat_gray()), kNoLimit);
  REQUIRE(std::get<ImageSize>(found) == ImageSize{8, 8});
}

TEST_CASE("no proper beginning of a file is accepted", "[jpeg]") {
  const Bytes file = flat_gray();
  for (std::size_t size = 0; size < file.size(); ++size) {
    CAPTURE(size);
    REQUIRE(doubt_about(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(size))) !=
            "accepted");
  }
}

TEST_CASE("bytes behind the end of the image are ignored", "[jpeg]") {
  REQUIRE(doubt_about(flat_gray() + Bytes{0, 0xFF, 0xD8, 0xFF, 7}) == "accepted");
}

TEST_CASE("the pixel limit is the largest number of pixels accepted", "[jpeg]") {
  REQUIRE(doubt_about(flat_gray(), 64) == "accepted");
  REQUIRE_THAT(doubt_about(flat_gray(), 63), contains("more pixels"));
}

TEST_CASE("only 1, 3 or 4 components are accepted", "[jpeg]") {
  REQUIRE_THAT(
      doubt_about(kStart + tables() + frame(0xC0, 2) + scan({1, 2}, kWhole, kFlatBlock) + kEnd),
      contains("components"));
}

TEST_CASE("only Huffman coded sequential and progressive frames are accepted", "[jpeg]") {
  for (int marker = 0xC0; marker < 0x100; ++marker) {
    CAPTURE(marker);
    const auto file = kStart + tables() + frame(static_cast<std::uint8_t>(marker), 1) +
                      scan({1}, kWhole, kFlatBlock) + kEnd;
    const bool accepted = marker == 0xC0 || marker == 0xC1;
    REQUIRE((doubt_about(file) == "accepted") == accepted);
  }
}

TEST_CASE("restart markers must count up and have an interval", "[jpeg]") {
  const Bytes interval = segment(0xDD, Bytes{0, 1});
  const auto file = [](const Bytes& before, const Bytes& data) {
    return kStart + before + tables() + frame(0xC0, 1) + scan({1}, kWhole, data) + kEnd;
  };
  const Bytes in_order{0x3F, 0xFF, 0xD0, 0x3F, 0xFF, 0xD1, 0x3F};
  REQUIRE(doubt_about(file(interval, in_order)) == "accepted");
  REQUIRE_THAT(doubt_about(file({}, in_order)), contains("out of sequence"));
  REQUIRE_THAT(doubt_about(file(interval, {0x3F, 0xFF, 0xD1})), contains("out of sequence"));
}

TEST_CASE("fill bytes may stand before the marker that ends a scan, and nowhere else", "[jpeg]") {
  const auto file = [](const Bytes& data) {
    return kStart + segment(0xDD, Bytes{0, 1}) + tables() + frame(0xC0, 1) +
           scan({1}, kWhole, data) + kEnd;
  };
  REQUIRE(doubt_about(file({0x3F, 0xFF, 0xFF, 0xFF})) == "accepted");
  REQUIRE(decode(file({0x3F, 0xFF, 0xFF, 0xFF})).pixels == Bytes(8 * 8 * 3, 128));
  REQUIRE_THAT(doubt_about(file({0x3F, 0xFF, 0xFF, 0x00})), contains("fill bytes"));
  REQUIRE_THAT(doubt_about(file({0x3F, 0xFF, 0xFF, 0xD0, 0x3F})), contains("fill bytes"));
}

TEST_CASE("a Huffman table that a scan uses must be there", "[jpeg]") {
  const Bytes quant = segment(0xDB, Bytes{0} + Bytes(64, 1));
  REQUIRE_THAT(doubt_about(kStart + quant + frame(0xC0, 1) + scan({1}, kWhole, kFlatBlock) + kEnd),
               contains("missing Huffman table"));
}

TEST_CASE("a sequential component has exactly one scan", "[jpeg]") {
  const Bytes head = kStart + tables() + frame(0xC0, 3);
  const Bytes first = scan({1}, kWhole, kFlatBlock);
  const Bytes others = scan({2, 3}, kWhole, kFlatBlock);
  REQUIRE(doubt_about(head + first + others + kEnd) == "accepted");
  REQUIRE_THAT(doubt_about(head + first + kEnd), contains("incomplete"));
  REQUIRE_THAT(doubt_about(head + first + first + others + kEnd), contains("out of order"));
  REQUIRE_THAT(doubt_about(head + scan({1, 4}, kWhole, kFlatBlock) + kEnd), contains("unknown"));
}

TEST_CASE("a progressive coefficient gets each of its bits once", "[jpeg]") {
  const Bytes dc = scan({1}, {0, 0, 0x01}, kFlatBlock);
  const Bytes dc_last_bit = scan({1}, {0, 0, 0x10}, kFlatBlock);
  const Bytes ac = scan({1}, {1, 63, 0x02}, kFlatBlock);
  const Bytes ac_next_bit = scan({1}, {1, 63, 0x21}, kFlatBlock);
  const Bytes ac_last_bit = scan({1}, {1, 63, 0x10}, kFlatBlock);
  REQUIRE(doubt_about(progressive(dc + ac + ac_next_bit + dc_last_bit + ac_last_bit)) ==
          "accepted");

  REQUIRE_THAT(doubt_about(progressive(dc + dc_last_bit + ac + ac_next_bit)),
               contains("incomplete"));
  REQUIRE_THAT(doubt_about(progressive(dc + ac + ac_last_bit)), contains("out of order"));
  REQUIRE_THAT(doubt_about(progressive(ac + dc)), contains("out of order"));
  REQUIRE_THAT(doubt_about(progressive(dc + dc)), contains("out of order"));
  REQUIRE_THAT(doubt_about(progressive(dc + scan({1}, {1, 64, 0}, kFlatBlock))),
               contains("bad progressive scan"));
  REQUIRE_THAT(doubt_about(progressive(scan({1}, {0, 63, 0}, kFlatBlock))),
               contains("bad progressive scan"));
}

TEST_CASE("application segments that Pillow would choke on are doubtful", "[jpeg]") {
  using namespace std::string_literals;
  const auto with = [](std::uint8_t marker, const std::string& payload) {
    Bytes file = flat_gray();
    file.erase(file.begin(), file.begin() + 2);
    return doubt_about(kStart + segment(marker, payload) + file);
  };
  REQUIRE(with(0xE0, "JFIF\0\1\1"s) == "accepted");
  REQUIRE_THAT(with(0xE0, "JFIF\0\1"), contains("JFIF"));
  REQUIRE(with(0xE2, "ICC_PROFILE\0\1\1"s) == "accepted");
  REQUIRE_THAT(with(0xE2, "ICC_PROFILE\0\1"s), contains("ICC"));
  REQUIRE(with(0xEE, "Adobe\0\0"s) == "accepted");
  REQUIRE_THAT(with(0xEE, "Adobe\0"s), contains("Adobe"));
  REQUIRE(with(0xED,
               "Photoshop 3.0\0"
               "8BIM\4\4\0\0\0\0\0\0"s) == "accepted");
  REQUIRE(with(0xED,
               "Photoshop 3.0\0"
               "8BIM\4"s) == "accepted");
  REQUIRE_THAT(with(0xED,
                    "Photoshop 3.0\0"
                    "8BIM\4\4"s),
               contains("Photoshop"));
}

TEST_CASE("EXIF counts only where no JFIF gives a resolution", "[jpeg]") {
  using namespace std::string_literals;
  const std::string cut_exif = "Exif\0\0MM\0*\0\0\0\x08\0\x09"s;
  const std::string jfif = "JFIF\0\1\1"s;
  const auto with = [&](const std::string& jfif_resolution) {
    Bytes file = flat_gray();
    file.erase(file.begin(), file.begin() + 2);
    return doubt_about(kStart + segment(0xE1, cut_exif) + segment(0xE0, jfif + jfif_resolution) +
                       file);
  };
  REQUIRE(with("\1\0\x48\0\x48"s) == "accepted");
  REQUIRE_THAT(with("\0\0\1\0\1"s), contains("EXIF"));
}

TEST_CASE("flat gray decodes to its gray in all three channels", "[jpeg]") {
  const auto image = decode(flat_gray());
  REQUIRE(image.size == ImageSize{8, 8});
  REQUIRE(image.pixels == Bytes(8 * 8 * 3, 128));
}

TEST_CASE("a region is the part of the whole image that it names", "[jpeg]") {
  // Two blocks side by side, 0 0 and 10 1 0, whose DC differs by one large step.
  const auto file = kStart + tables() + segment(0xDB, Bytes{0} + Bytes(64, 200)) + two_blocks() +
                    scan({1}, kWhole, {0x2B}) + kEnd;
  const auto whole = decode(file);
  REQUIRE(whole.pixels.front() != whole.pixels.back());
  headrace::JpegDecoder decoder;
  headrace::RgbImage part;
  for (const headrace::Region& region : {headrace::Region{7, 0, 2, 8},
                                         {15, 7, 1, 1},
                                         {0, 3, 8, 2},
                                         {8, 0, 8, 1},
                                         {1, 1, 15, 7},
                                         {0, 0, 16, 8}}) {
    CAPTURE(region.left, region.top);
    decoder.decode(as_file(file), region, part);
    REQUIRE(part.size == region.size());
    for (int x = 0; x < region.width; ++x) {
      const auto at = static_cast<std::size_t>(x) * 3;
      REQUIRE(part.pixels[at] == whole.pixels[at + static_cast<std::size_t>(region.left) * 3]);
    }
  }
}

TEST_CASE("a region that is not part of the image is refused", "[jpeg]") {
  headrace::RgbImage image;
  for (const headrace::Region& region :
       {headrace::Region{-1, 0, 2, 2}, {0, -1, 2, 2}, {7, 0, 2, 1}, {0, 8, 1, 1}, {0, 0, 0, 1}}) {
    REQUIRE_THROWS_WITH(headrace::JpegDecoder().decode(as_file(flat_gray()), region, image),
                        contains("region"));
  }
}

TEST_CASE("four components without an Adobe segment are inverted CMYK", "[jpeg]") {
  const auto image =
      decode(kStart + tables() + frame(0xC0, 4) + scan({1, 2, 3, 4}, kWhole, {0x00}) + kEnd);
  // White is 128, ink 127: 128 - round(127 * 128 / 255).
  REQUIRE(image.pixels == Bytes(8 * 8 * 3, 64));
}

TEST_CASE("what libjpeg only warns about is doubtful, with its words", "[jpeg]") {
  const Bytes unused(40, 0x55);
  const auto file =
      kStart + tables() + frame(0xC0, 1) + scan({1}, kWhole, kFlatBlock + unused) + kEnd;
  REQUIRE(doubt_about(file) == "accepted");
  try {
    decode(file);
    FAIL("decoded");
  } catch (const headrace::Error& error) {
    REQUIRE(error.code() == headrace::ErrorCode::kDoubtfulData);
    REQUIRE(error.context().stage == "decode");
    REQUIRE_THAT(error.what(), contains("extraneous bytes"));
  }
}

TEST_CASE("a decoder works on after an error, without a trace of the broken file", "[jpeg]") {
  const Bytes no_tables = kStart + frame(0xC0, 1) + scan({1}, kWhole, kFlatBlock) + kEnd;
  headrace::JpegDecoder decoder;
  headrace::RgbImage image;
  decoder.decode(as_file(flat_gray()), std::nullopt, image);
  REQUIRE_THROWS_AS(decoder.decode(as_file(no_tables), std::nullopt, image), headrace::Error);
  decoder.decode(as_file(flat_gray()), std::nullopt, image);
  REQUIRE(image.pixels == Bytes(8 * 8 * 3, 128));
}

TEST_CASE("decoding anything else than JPEG throws", "[jpeg]") {
  REQUIRE_THROWS_AS(decode({}), headrace::Error);
  REQUIRE_THROWS_AS(decode({1, 2, 3}), headrace::Error);
  REQUIRE_THROWS_AS(decode(kStart), headrace::Error);
}
