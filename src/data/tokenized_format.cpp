#include "data/tokenized_format.h"

#include <fmt/format.h>

#include "data/token_block.h"

namespace hone {

namespace {

const Json& list_of(const RowColumns& columns, std::string_view name, const Json& list, size_t size) {
  if (!list.is_array()) columns.fail_type(name, "a list", list);
  if (list.size() != size) {
    columns.fail(fmt::format("'{}' has {} entries, 'input_ids' has {}", name, list.size(), size),
                 "the lists are aligned: one entry for each token");
  }
  return list;
}

/// Entry i of a list of whole numbers that fit 32 bits.
int32_t integer_at(const RowColumns& columns, std::string_view name, const Json& list, size_t i) {
  const Json& entry = list[i];
  if (!entry.is_number_integer()) columns.fail_type(fmt::format("{}[{}]", name, i), "a whole number", entry);
  const bool fits = entry.is_number_unsigned() ? entry.get<uint64_t>() <= INT32_MAX
                                               : entry.get<int64_t>() >= INT32_MIN && entry.get<int64_t>() <= INT32_MAX;
  if (!fits) columns.fail(fmt::format("{}[{}] is {}", name, i, entry.dump()), "token ids fit 32 bits");
  return static_cast<int32_t>(entry.get<int64_t>());
}

void read_weights(const RowColumns& columns, TokenizedRow& row) {
  const Json* weights = columns.find("weights");
  if (!weights) return;
  list_of(columns, "weights", *weights, row.input_ids.size());
  for (size_t i = 0; i < weights->size(); ++i) {
    const Json& entry = (*weights)[i];
    if (!entry.is_number()) columns.fail_type(fmt::format("weights[{}]", i), "a number", entry);
    const auto weight = entry.get<double>();
    if (!(weight >= 0 && weight <= kMaxWeight)) {
      columns.fail(fmt::format("weights[{}] is {}", i, entry.dump()),
                   fmt::format("a weight is in [0, {}]", kMaxWeight));
    }
    if (weight == 0) row.labels[i] = kIgnoredLabel;
    row.weights.push_back(static_cast<float>(weight));
  }
}

void check_layout(const RowColumns& columns, size_t size) {
  if (const Json* mask = columns.find("attention_mask")) {
    list_of(columns, "attention_mask", *mask, size);
    for (size_t i = 0; i < size; ++i) {
      if ((*mask)[i] == 1 || (*mask)[i] == true) continue;
      columns.fail(fmt::format("attention_mask[{}] is {}, not 1", i, (*mask)[i].dump()),
                   "remove the padding from the row: Hone packs samples without any");
    }
  }
  if (const Json* positions = columns.find("position_ids")) {
    list_of(columns, "position_ids", *positions, size);
    for (size_t i = 0; i < size; ++i) {
      if ((*positions)[i] == i) continue;
      columns.fail(fmt::format("position_ids[{}] is {}, not {}", i, (*positions)[i].dump(), i),
                   "write one document a row: Hone packs them itself and numbers each from 0");
    }
  }
}

}  // namespace

TokenizedRow tokenized_row(const RowColumns& columns) {
  TokenizedRow row;
  const Json& ids = columns.at("input_ids");
  if (!ids.is_array()) columns.fail_type("input_ids", "a list of token ids", ids);
  if (ids.empty()) columns.fail("'input_ids' is an empty list", "remove the row");
  for (size_t i = 0; i < ids.size(); ++i) row.input_ids.push_back(integer_at(columns, "input_ids", ids, i));
  if (const Json* labels = columns.find("labels")) {
    list_of(columns, "labels", *labels, ids.size());
    for (size_t i = 0; i < ids.size(); ++i) row.labels.push_back(integer_at(columns, "labels", *labels, i));
  } else {
    row.labels = row.input_ids;
  }
  read_weights(columns, row);
  check_layout(columns, ids.size());
  return row;
}

}  // namespace hone
