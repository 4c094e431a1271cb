#include "data/readers/parquet/row_writer.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "data/readers/parquet/json_text.h"

namespace hone::parquet {

namespace {

bool is_nothing(const RowPlan& plan, const RowNode& node) {
  return node.shape == RowNode::Shape::kLeaf && plan.leaves[node.first_leaf].form == ValueForm::kNothing;
}

}  // namespace

std::vector<bool> needs_reading(const RowPlan& plan) {
  std::vector<bool> needed(plan.leaves.size(), true);
  for (const RowNode& column : plan.root.children) {
    if (is_nothing(plan, column)) needed[column.first_leaf] = false;
  }
  if (!needed.empty() && std::find(needed.begin(), needed.end(), true) == needed.end()) needed.front() = true;
  return needed;
}

void RowWriter::write(std::string& out) {
  write_object(plan_.root, 0, true, out);
  check_size(out);
}

void RowWriter::check_size(const std::string& out) const {
  if (out.size() > most_) fault("it is longer than {} bytes", most_);
}

void RowWriter::take_absent(const RowNode& node, int repetition, int definition) {
  for (size_t i = node.first_leaf; i < node.last_leaf; ++i) {
    if (columns_[i]->take(repetition) != definition) columns_[i]->refuse("its levels do not fit the columns beside it");
  }
}

bool RowWriter::write_value(const RowNode& node, int repetition, std::string& out) {
  switch (node.shape) {
    case RowNode::Shape::kLeaf:
      return write_leaf(node, repetition, out);
    case RowNode::Shape::kObject:
      return write_object(node, repetition, false, out);
    case RowNode::Shape::kList:
      return write_list(node, repetition, out);
    case RowNode::Shape::kMap:
      return write_map(node, repetition, out);
  }
  return false;
}

bool RowWriter::write_leaf(const RowNode& node, int repetition, std::string& out) {
  if (!columns_[node.first_leaf]) {
    out += kJsonNull;
    return false;
  }
  ColumnReader& from = column(node);
  const int definition = from.take(repetition);
  if (definition < node.floor) from.refuse("its levels do not fit the columns beside it");
  const Leaf& leaf = from.leaf();
  if (definition < node.present || leaf.form == ValueForm::kNothing) {
    out += kJsonNull;
    return false;
  }
  try {
    if (holds_bytes(leaf.physical)) {
      append_bytes(out, from.text(), leaf);
    } else {
      append_number(out, from.number(), leaf);
    }
  } catch (const ParquetFault& reason) {
    from.refuse(reason);
  }
  return true;
}

/// If members have the same name, the first one keeps its place and gets the value of the last one.
template <class Spans>
void drop_repeated_names(std::string& out, size_t begin, const Spans& spans) {
  std::map<std::string_view, size_t> places;
  std::vector<std::pair<std::string_view, std::string_view>> members;
  const std::string_view text = out;
  for (const auto& span : spans) {
    const std::string_view name = text.substr(span.begin, span.value - span.begin);
    const auto [place, is_new] = places.try_emplace(name, members.size());
    if (is_new) members.emplace_back(name, "");
    members[place->second].second = text.substr(span.value, span.end - span.value);
  }
  if (members.size() == spans.size()) return;
  std::string kept;
  for (const auto& [name, value] : members) {
    if (!kept.empty()) kept += ',';
    kept.append(name).append(value);
  }
  out.replace(begin, std::string::npos, kept);
}

bool RowWriter::write_object(const RowNode& node, int repetition, bool keep_nulls, std::string& out) {
  if (node.present > node.floor) {
    const int definition = column(node).definition();
    if (definition < node.present) {
      take_absent(node, repetition, definition);
      if (definition < node.floor) column(node).refuse("its levels do not fit the columns beside it");
      out += kJsonNull;
      return false;
    }
  }
  out += '{';
  const size_t begin = out.size();
  std::vector<Span> spans;  // only if names are repeated
  for (const RowNode& member : node.children) {
    const size_t before = out.size();
    if (before > begin) out += ',';
    Span span{out.size(), 0, 0};
    out += member.key;
    span.value = out.size();
    if (!write_value(member, repetition, out) && !keep_nulls) {
      out.resize(before);
      continue;
    }
    span.end = out.size();
    if (node.repeated_names) spans.push_back(span);
  }
  if (node.repeated_names) drop_repeated_names(out, begin, spans);
  out += '}';
  return true;
}

bool RowWriter::write_list(const RowNode& node, int repetition, std::string& out) {
  ColumnReader& first = column(node);
  const int definition = first.definition();
  if (definition <= node.present) {
    take_absent(node, repetition, definition);
    if (definition < node.floor) first.refuse("its levels do not fit the columns beside it");
    out += definition < node.present ? kJsonNull : "[]";
    return definition == node.present;
  }
  out += '[';
  for (int level = repetition;; level = node.repetition) {
    write_value(node.children[0], level, out);
    check_size(out);
    if (first.repetition() != node.repetition) break;
    out += ',';
  }
  out += ']';
  return true;
}

/// A key that is not text is the text of its JSON.
void RowWriter::write_key(const RowNode& node, int repetition, std::string& out) {
  const size_t begin = out.size();
  write_value(node, repetition, out);
  if (out[begin] != '"') {
    const std::string json = out.substr(begin);
    out.resize(begin);
    append_json_text(out, json);
  }
  out += ':';
}

bool RowWriter::write_map(const RowNode& node, int repetition, std::string& out) {
  ColumnReader& first = column(node);
  const int definition = first.definition();
  if (definition <= node.present) {
    take_absent(node, repetition, definition);
    if (definition < node.floor) first.refuse("its levels do not fit the columns beside it");
    out += definition < node.present ? kJsonNull : "{}";
    return definition == node.present;
  }
  out += '{';
  const size_t begin = out.size();
  std::vector<Span> spans;
  for (int level = repetition;; level = node.repetition) {
    Span span{out.size(), 0, 0};
    write_key(node.children[0], level, out);
    span.value = out.size();
    write_value(node.children[1], level, out);
    span.end = out.size();
    spans.push_back(span);
    check_size(out);
    if (first.repetition() != node.repetition) break;
    out += ',';
  }
  drop_repeated_names(out, begin, spans);
  out += '}';
  return true;
}

}  // namespace hone::parquet
