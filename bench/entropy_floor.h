// The floor of decoding: libjpeg's entropy decoding alone.
#pragma once

#include <cstddef>
#include <cstdio>
#include <span>

// jpeglib.h wants size_t and FILE declared before it.
#include <jpeglib.h>

namespace headrace::bench {

/// Every row but the last is skipped: skipping that one too would decode nothing at all.
inline void decode_entropy(std::span<const std::byte> file) {
  jpeg_decompress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(file.data()), file.size());
  jpeg_read_header(&info, TRUE);
  jpeg_start_decompress(&info);
  jpeg_skip_scanlines(&info, info.output_height - 1);
  jpeg_destroy_decompress(&info);
}

}  // namespace headrace::bench
