#include "data/readers/parquet/arrow_schema.h"

#include <optional>
#include <string_view>
#include <vector>

#include "data/readers/parquet/bytes.h"

namespace hone::parquet {

namespace {

/// Numbers of Arrow's union of types.
enum class ArrowType : uint8_t {
  kList = 12,
  kStruct = 13,
  kFixedSizeList = 16,
  kMap = 17,
  kDuration = 18,
  kLargeList = 21
};

/// Slots of tables of Arrow's flatbuffers.
constexpr int kMessageHeader = 2, kSchemaFields = 1, kFieldType = 2, kFieldDictionary = 4, kFieldChildren = 5;

/// A table of a flatbuffer: each field is at an offset that the table's own table of offsets has. Every read is
/// checked.
class FlatTable {
 public:
  /// The table that the offset at `place` points to.
  FlatTable(Bytes all, uint64_t place) : all_(all), at_(follow(place)) {
    const auto back = read<int32_t>(at_);
    const int64_t offsets = static_cast<int64_t>(at_) - back;
    if (offsets < 0) damaged();
    offsets_ = static_cast<uint64_t>(offsets);
  }

  /// The place of a field; nothing if the table has its default.
  std::optional<uint64_t> place(int slot) const {
    const uint64_t entry = 4 + 2 * static_cast<uint64_t>(slot);
    if (entry + 2 > read<uint16_t>(offsets_)) return {};
    const auto offset = read<uint16_t>(offsets_ + entry);
    return offset == 0 ? std::nullopt : std::optional(at_ + offset);
  }
  uint8_t byte(int slot) const {
    const auto found = place(slot);
    return found ? read<uint8_t>(*found) : uint8_t{0};
  }
  std::optional<FlatTable> table(int slot) const {
    const auto found = place(slot);
    return found ? std::optional(FlatTable(all_, *found)) : std::nullopt;
  }
  std::vector<FlatTable> tables(int slot) const {
    std::vector<FlatTable> found;
    const auto vector = place(slot);
    if (!vector) return found;
    const uint64_t begin = follow(*vector);
    const auto count = read<uint32_t>(begin);
    if (count > all_.size() / 4) damaged();
    for (uint64_t i = 0; i < count; ++i) found.emplace_back(all_, begin + 4 + 4 * i);
    return found;
  }

 private:
  [[noreturn]] static void damaged() { fault("its Arrow schema is damaged"); }

  template <class Value>
  Value read(uint64_t place) const {
    if (place > all_.size() || sizeof(Value) > all_.size() - place) damaged();
    return little_endian<Value>(&all_[static_cast<size_t>(place)]);
  }
  uint64_t follow(uint64_t place) const { return place + read<uint32_t>(place); }

  Bytes all_;
  uint64_t at_ = 0, offsets_ = 0;
};

std::vector<uint8_t> decode_base64(std::string_view text) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<uint8_t> bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char character : text) {
    if (character == '=') break;
    const size_t digit = kDigits.find(character);
    if (digit == std::string_view::npos) fault("its Arrow schema is damaged");
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes.push_back(static_cast<uint8_t>(bits >> count));
  }
  return bytes;
}

/// Follows the schema along the plan, as deep as both have the same form.
void restore(const FlatTable& field, RowNode& node, RowPlan& plan) {
  const auto type = static_cast<ArrowType>(field.byte(kFieldType));
  if (node.shape == RowNode::Shape::kLeaf) {
    Leaf& leaf = plan.leaves[node.first_leaf];
    const bool integer = leaf.physical == Physical::kInt64 && leaf.form == ValueForm::kSigned;
    if (type == ArrowType::kDuration && integer && !field.place(kFieldDictionary)) leaf.form = ValueForm::kDuration;
    return;
  }
  std::vector<FlatTable> children = field.tables(kFieldChildren);
  const bool list = type == ArrowType::kList || type == ArrowType::kLargeList || type == ArrowType::kFixedSizeList;
  const bool fits = node.shape == RowNode::Shape::kList  ? list
                    : node.shape == RowNode::Shape::kMap ? type == ArrowType::kMap
                                                         : type == ArrowType::kStruct;
  if (node.shape == RowNode::Shape::kMap && children.size() == 1) children = children[0].tables(kFieldChildren);
  if (!fits || children.size() != node.children.size()) return;
  for (size_t i = 0; i < children.size(); ++i) restore(children[i], node.children[i], plan);
}

}  // namespace

void restore_durations(const std::string& encoded, RowPlan& plan) {
  if (encoded.empty()) return;
  const std::vector<uint8_t> bytes = decode_base64(encoded);
  // The size of the message, after a marker that the first versions did not have.
  const bool marked = bytes.size() >= 8 && little_endian<uint32_t>(bytes.data()) == 0xffffffff;
  const size_t head = marked ? 8 : 4;
  if (bytes.size() < head) fault("its Arrow schema is damaged");
  const Bytes message(bytes.data() + head, bytes.size() - head);
  const auto schema = FlatTable(message, 0).table(kMessageHeader);
  if (!schema) fault("its Arrow schema is damaged");
  const std::vector<FlatTable> fields = schema->tables(kSchemaFields);
  if (fields.size() != plan.root.children.size()) return;
  for (size_t i = 0; i < fields.size(); ++i) restore(fields[i], plan.root.children[i], plan);
}

}  // namespace hone::parquet
