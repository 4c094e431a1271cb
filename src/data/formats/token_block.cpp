#include "data/formats/token_block.h"

#include <algorithm>

#include "core/text/json.h"

namespace hone {

namespace {

/// The counters of SampleCounts, by their names in a file.
constexpr std::pair<const char*, int64_t SampleCounts::*> kCounters[] = {
    {"offered", &SampleCounts::offered},
    {"kept", &SampleCounts::kept},
    {"truncated", &SampleCounts::truncated},
    {"split", &SampleCounts::split},
    {"too_long", &SampleCounts::too_long},
    {"unsupervised", &SampleCounts::unsupervised},
    {"tokens", &SampleCounts::tokens},
    {"supervised", &SampleCounts::supervised},
    {"dropped_tokens", &SampleCounts::dropped_tokens}};

}  // namespace

int64_t Sample::supervised() const {
  if (labels.empty()) return 0;
  return std::count_if(labels.begin() + 1, labels.end(), [](int32_t label) { return label != kIgnoredLabel; });
}

SampleCounts& SampleCounts::operator+=(const SampleCounts& other) {
  for (const auto& [name, counter] : kCounters) this->*counter += other.*counter;
  return *this;
}

void RowsReport::add_nothing_learnt(const NothingLearnt& added) {
  for (NothingLearnt& known : nothing_learnt) {
    if (known.cause != added.cause) continue;
    known.rows += added.rows;
    return;
  }
  nothing_learnt.push_back(added);
}

void RowsReport::add_notice(const RowNotice& added) {
  for (RowNotice& known : notices) {
    if (known.text != added.text) continue;
    known.rows += added.rows;
    return;
  }
  constexpr size_t kMost = 64;  // notices may contain words of the data
  if (notices.size() < kMost) notices.push_back(added);
}

void RowsReport::add_difference(const AskedOtherwise& added) {
  constexpr size_t kMost = 8;  // templates may write text of the data before answers
  for (AskedOtherwise& known : asked_otherwise) {
    const bool last = &known == &asked_otherwise.back() && asked_otherwise.size() == kMost;
    if (!last && (known.learnt != added.learnt || known.asked != added.asked)) continue;
    known.answers += added.answers;
    return;
  }
  asked_otherwise.push_back(added);
}

RowsReport& RowsReport::operator+=(const RowsReport& next) {
  rows += next.rows;
  counts += next.counts;
  for (const NothingLearnt& entry : next.nothing_learnt) add_nothing_learnt(entry);
  for (const RowNotice& notice : next.notices) add_notice(notice);
  answers += next.answers;
  for (const AskedOtherwise& entry : next.asked_otherwise) add_difference(entry);
  unused_columns.insert(next.unused_columns.begin(), next.unused_columns.end());
  return *this;
}

Json RowsReport::to_json() const {
  Json json = {{"rows", rows},
               {"counts", Json::object()},
               {"nothing_learnt", Json::array()},
               {"notices", Json::array()},
               {"answers", answers},
               {"asked_otherwise", Json::array()},
               {"unused_columns", unused_columns}};
  for (const auto& [name, counter] : kCounters) json["counts"][name] = counts.*counter;
  for (const NothingLearnt& entry : nothing_learnt) {
    json["nothing_learnt"].push_back({{"cause", entry.cause},
                                      {"rows", entry.rows},
                                      {"first_where", entry.first_where},
                                      {"masked_by_data", entry.masked_by_data}});
  }
  for (const RowNotice& notice : notices) {
    json["notices"].push_back({{"text", notice.text}, {"rows", notice.rows}, {"first_where", notice.first_where}});
  }
  for (const AskedOtherwise& entry : asked_otherwise) {
    json["asked_otherwise"].push_back({{"learnt", entry.learnt},
                                       {"asked", entry.asked},
                                       {"advice", entry.advice},
                                       {"answers", entry.answers},
                                       {"first_where", entry.first_where}});
  }
  return json;
}

RowsReport RowsReport::from_json(const Json& json) {
  RowsReport report;
  json.at("rows").get_to(report.rows);
  for (const auto& [name, counter] : kCounters) json.at("counts").at(name).get_to(report.counts.*counter);
  for (const Json& entry : json.at("nothing_learnt")) {
    report.nothing_learnt.push_back(
        {entry.at("cause"), entry.at("rows"), entry.at("first_where"), entry.at("masked_by_data")});
  }
  for (const Json& notice : json.at("notices")) {
    report.notices.push_back({notice.at("text"), notice.at("rows"), notice.at("first_where")});
  }
  json.at("answers").get_to(report.answers);
  for (const Json& entry : json.at("asked_otherwise")) {
    report.asked_otherwise.push_back(
        {{entry.at("learnt"), entry.at("asked"), entry.at("advice")}, entry.at("answers"), entry.at("first_where")});
  }
  json.at("unused_columns").get_to(report.unused_columns);
  return report;
}

}  // namespace hone
