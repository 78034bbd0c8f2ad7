// Baseline Huffman decoding, in place of libjpeg's: most of what a picture costs is spent here.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headrace {

constexpr std::size_t kJpegBlock = 64;      ///< coefficients
constexpr std::size_t kJpegMcuBlocks = 10;  ///< most blocks in a minimum coded unit
constexpr std::size_t kJpegTables = 4;      ///< most Huffman tables of a class
constexpr std::size_t kJpegComponents = 4;  ///< most components of a scan

/// As a DHT segment gives it: how many codes of each length there are, and their symbols in order.
struct HuffmanCode {
  std::array<std::uint8_t, 17> counts{};  ///< [0] is not used
  std::array<std::uint8_t, 256> symbols{};
  bool operator==(const HuffmanCode&) const = default;
};

/// The one scan of a baseline image.
struct JpegScan {
  struct Block {
    std::size_t component, dc_table, ac_table;
  };

  std::span<const std::uint8_t> data;  ///< from behind the scan's header to the end of the file
  unsigned mcus_per_row = 0;
  unsigned restart_interval = 0;  ///< MCUs; 0: no restart markers
  std::size_t block_count = 0;    ///< of one MCU
  std::array<Block, kJpegMcuBlocks> blocks{};
  std::array<const HuffmanCode*, kJpegTables> dc{}, ac{};  ///< null where no block uses it
};

/// Walks through a scan once, MCU by MCU, as libjpeg's decoders do, with the same coefficients.
///
/// It gives up on whatever is amiss (an unknown code, too many coefficients, data that end too
/// early or too late for the next marker) and leaves the judgement to libjpeg: some damage libjpeg
/// ignores, some it warns of. What is decoded without giving up is decoded by libjpeg without a
/// warning.
class JpegEntropyDecoder {
 public:
  /// Says whether it can decode the scan, whose data are copied. Keeps tables that have not changed
  /// since the last scan.
  bool begin(const JpegScan& scan);

  /// Of the MCUs to come only those in columns [first, end) are needed. Until then all are.
  void need_columns(unsigned first, unsigned end);

  /// The next MCU. Null discards it; so does a column that is not needed, whose blocks keep their
  /// zeros. Others must be zero before.
  void next(std::int16_t (*const* blocks)[kJpegBlock]);

  /// To be called after the last MCU that is wanted. False if the decoder has given up, so that
  /// coefficients are wrong and the image must be decoded by libjpeg.
  bool finish();

  /// After finish(): whether the last MCU used up the data, so that it may be the last of the scan.
  bool at_end() const;
  /// How many bytes stand before the marker that ends the scan.
  std::size_t scan_bytes() const { return scan_bytes_; }

 private:
  static constexpr int kDcBits = 9;
  static constexpr int kAcBits = 11;

  /// Codes that are longer than the tables are wide.
  struct LongCodes {
    std::array<std::uint32_t, 17> end;    ///< of the codes of each length, left-aligned 16 bits
    std::array<std::int32_t, 17> offset;  ///< from a code to its place among the symbols
    int symbol(std::uint64_t bits, int& length, const HuffmanCode& code) const;
  };
  struct DcEntry {
    std::uint8_t length;  ///< of the code; 0: too long for the table, or none
    std::uint8_t size;    ///< of the difference, in bits
  };
  /// One or two symbols with their values, as far as they fit into the bits looked at.
  struct AcEntry {
    std::uint8_t length;         ///< bits in all
    std::uint8_t advance;        ///< coefficients in all; or kEndOfBlock more, or kLong
    std::uint8_t first, second;  ///< where the values go, counted from the next coefficient
    std::int16_t first_value, second_value;
  };
  struct DcTable {
    HuffmanCode code;
    LongCodes long_codes;
    std::array<DcEntry, 1 << kDcBits> entries;
    bool build(const HuffmanCode& from);
  };
  /// As many symbols as fit, without their values; the last value may reach beyond the table's
  /// bits.
  struct AcSkip {
    std::uint8_t length;   ///< bits in all
    std::uint8_t advance;  ///< as in AcEntry
  };
  struct AcTable {
    HuffmanCode code;
    LongCodes long_codes;
    std::array<AcEntry, 1 << kAcBits> entries;
    std::array<AcSkip, 1 << kAcBits> skips;
    static AcSkip join(const std::array<AcEntry, 1 << kAcBits>& single, std::size_t bits);
    bool build(const HuffmanCode& from);
  };
  struct BlockTables {
    std::size_t component;
    const DcTable* dc;
    const AcTable* ac;
  };
  /// The bits at hand are at the top; below them may be some that are still to be counted.
  struct BitReader {
    const std::uint8_t* next;
    std::uint64_t bits;
    int count;

    void refill();
    void drop(int length);
    int take_value(int size);
  };

  void unstuff(const JpegScan& scan);
  bool start_segment();
  std::size_t bits_left() const;
  template <bool kStore>
  void decode(std::int16_t (*const* blocks)[kJpegBlock], unsigned mcu_count);
  template <bool kStore>
  static bool decode_block(BitReader& reader, const BlockTables& tables, std::uint32_t& dc,
                           std::int16_t* block);

  std::array<DcTable, kJpegTables> dc_tables_;
  std::array<AcTable, kJpegTables> ac_tables_;
  std::array<bool, kJpegTables> has_dc_{}, has_ac_{};

  std::vector<std::uint8_t> data_;         ///< without stuffing and markers, and a margin
  std::vector<std::size_t> segment_ends_;  ///< at restart markers, and the end
  std::size_t scan_bytes_ = 0;

  std::size_t block_count_ = 0;
  std::array<BlockTables, kJpegMcuBlocks> blocks_{};
  unsigned mcus_per_row_ = 0, first_column_ = 0, end_column_ = 0;
  unsigned restart_interval_ = 0;

  bool failed_ = false;
  unsigned column_ = 0;
  unsigned pending_ = 0;     ///< MCUs to discard before the next one
  unsigned to_restart_ = 0;  ///< MCUs
  std::size_t segment_ = 0;
  BitReader reader_{};
  std::array<std::uint32_t, kJpegComponents> last_dc_{};  ///< wraps around as libjpeg's does
};

}  // namespace headrace
