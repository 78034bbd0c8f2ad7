// What JpegDecoder does, with the choice that its tests need.
#pragma once

#include "headrace/jpeg.h"
#include "jpeg_entropy.h"

namespace headrace {

/// Which decoder reads the Huffman codes.
enum class EntropyPath {
  kOwn,      ///< JpegEntropyDecoder
  kLibjpeg,  ///< libjpeg's own
};

class RegionDecoder {
 public:
  /// As JpegDecoder::decode(). With kOwn, libjpeg's own decoder takes what JpegEntropyDecoder does
  /// not decode: progressive files, several scans, damage. Pixels and errors are those of kLibjpeg.
  /// @returns which one it was in the end.
  EntropyPath decode(std::span<const std::byte> file, const std::optional<Region>& region,
                     RgbImage& out, EntropyPath path = EntropyPath::kOwn);

  /// Whether kOwn works with the libjpeg of this process: it is tried out once, since it relies on
  /// a table of functions that libjpeg does not promise to keep. Otherwise kLibjpeg is taken.
  static bool has_own_path();

 private:
  EntropyPath decode_by(EntropyPath path, std::span<const std::byte> file,
                        const std::optional<Region>& region, RgbImage& out);

  JpegEntropyDecoder entropy_;
  std::vector<std::uint8_t> row_;
};

}  // namespace headrace
