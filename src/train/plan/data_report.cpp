#include "train/plan/data_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/text/json.h"
#include "data/dataset/repeats.h"
#include "report/chart.h"
#include "report/humanise.h"
#include "report/table.h"
#include "report/terminal.h"
#include "report/text_mask.h"

namespace hone {

namespace {

constexpr size_t kBriefRows = 5;   // in the table of data sets
constexpr size_t kBriefLines = 6;  // shown of a sample
constexpr int kBarWidth = 100;

std::string percent(double part, double whole) {
  const double share = whole > 0 ? 100 * part / whole : 0;
  return share > 0 && share < 0.1 ? "< 0.1 %" : fmt::format("{:.1f} %", share);
}

std::string percent(int64_t part, int64_t whole) {
  return percent(static_cast<double>(part), static_cast<double>(whole));
}

/// In narrow terminals, first drops the columns that the charts of `hone prepare` show better.
Table table_of(std::span<const DatasetReport> reports) {
  Table table({{"data set"},
               {"format", Align::kLeft, 2},
               {"rows", Align::kRight, 1},
               {"samples", Align::kRight},
               {"tokens", Align::kRight},
               {"supervised", Align::kRight},
               {"median", Align::kRight, 3},
               {"p90", Align::kRight, 5},
               {"p99", Align::kRight, 4},
               {"longest", Align::kRight}});
  for (const DatasetReport& report : reports) {
    const LengthSummary& lengths = report.lengths;
    table.add_row({report.name, std::string(name_of(report.format)), with_commas(report.rows),
                   with_commas(report.counts.kept), with_commas(report.counts.tokens),
                   percent(report.counts.supervised, report.counts.tokens), with_commas(lengths.p50),
                   with_commas(lengths.p90), with_commas(lengths.p99), with_commas(lengths.max)});
  }
  return table;
}

/// "3 rows longer than max_length 4096 were dropped, 2 were truncated: 1,234 tokens (1.2 %) are not used"
std::string unused_rows(const DatasetReport& report, int64_t max_length) {
  const SampleCounts& counts = report.counts;
  std::vector<std::string> parts;
  const auto add = [&](int64_t rows, const char* what) {
    if (rows > 0) parts.push_back(fmt::format("{} {}", with_commas(rows), what));
  };
  add(counts.too_long, "dropped");
  add(counts.truncated, "truncated");
  add(counts.split, "split");
  const std::string longer =
      parts.empty() ? "" : fmt::format("longer than max_length {}: {}", max_length, fmt::join(parts, ", "));
  parts.clear();
  if (!longer.empty()) parts.push_back(longer);
  add(counts.unsupervised, "dropped since there is nothing to learn in them");
  if (parts.empty()) return {};
  const int64_t all = counts.tokens + counts.dropped_tokens;
  const int64_t unused = counts.dropped_tokens;
  return fmt::format("data {}: {}; {} token{} ({}) {} not used", report.name, fmt::join(parts, "; "),
                     with_commas(unused), plural(unused), percent(unused, all), unused == 1 ? "is" : "are");
}

/// The bins, with empty ones that follow each other as one.
LengthHistogram without_empty_runs(const LengthHistogram& bins) {
  LengthHistogram merged;
  for (const LengthBin& bin : bins) {
    if (!merged.empty() && merged.back().rows == 0 && bin.rows == 0) {
      merged.back().to = bin.to;
    } else {
      merged.push_back(bin);
    }
  }
  return merged;
}

std::string histogram(const DatasetReport& report, int width, bool color) {
  std::vector<Bar> bars;
  int64_t tokens = 0;
  for (const LengthBin& bin : report.histogram) tokens += bin.tokens;
  for (const LengthBin& bin : without_empty_runs(report.histogram)) {
    const std::string label =
        bin.from == bin.to ? with_commas(bin.from) : fmt::format("{}–{}", with_commas(bin.from), with_commas(bin.to));
    bars.push_back({label, bin.rows, percent(bin.tokens, tokens) + " of the tokens"});
  }
  return fmt::format("lengths of the rows of {}, in tokens\n", report.name) +
         bar_chart(bars, std::min(width, kBarWidth), color);
}

Json facts_of(const DatasetReport& report, const char* split) {
  Json bins = Json::array();
  for (const LengthBin& bin : report.histogram) bins.push_back({bin.from, bin.to, bin.rows, bin.tokens});
  return {{"name", report.name},
          {"split", split},
          {"format", std::string(name_of(report.format))},
          {"rows", report.rows},
          {"samples", report.counts.kept},
          {"tokens", report.counts.tokens},
          {"supervised", report.counts.supervised},
          {"median", report.lengths.p50},
          {"p90", report.lengths.p90},
          {"p99", report.lengths.p99},
          {"longest", report.lengths.max},
          {"dropped", report.counts.too_long},
          {"truncated", report.counts.truncated},
          {"cut", report.counts.split},
          {"unsupervised", report.counts.unsupervised},
          {"histogram", std::move(bins)}};
}

Json facts_of(const Repeats& repeats) {
  Json examples = Json::array();
  for (const RepeatedRow& row : repeats.examples) examples.push_back({row.where, row.first_where});
  return {{"rows", repeats.rows}, {"repeated", repeats.repeated}, {"examples", std::move(examples)}};
}

void warn_of_repeats(const Repeats& repeats, const char* what, const char* of, std::vector<std::string>& warnings) {
  if (repeats.repeated == 0) return;
  std::vector<std::string> examples;
  for (const RepeatedRow& row : repeats.examples) {
    examples.push_back(fmt::format("{} as {}", row.where, row.first_where));
  }
  warnings.push_back(fmt::format("{} of {} {} ({}) {}: {}", with_commas(repeats.repeated), with_commas(repeats.rows),
                                 of, percent(repeats.repeated, repeats.rows), what, fmt::join(examples, ", ")));
}

}  // namespace

DataReport data_report(const TrainingData& data, int64_t max_length, int width, bool color) {
  DataReport result;
  Json sets = Json::array();
  const auto add = [&](const std::vector<DatasetReport>& reports, bool bars) {
    if (reports.empty()) return;
    const std::span<const DatasetReport> all = reports, first = all.first(std::min(all.size(), kBriefRows));
    result.detail += table_of(all).to_string(color, 2, width);
    result.brief += table_of(first).to_string(color, 2, width);
    if (first.size() < all.size()) result.brief += fmt::format("  and {} more data sets\n", all.size() - first.size());
    for (const DatasetReport& report : reports) {
      sets.push_back(facts_of(report, bars ? "train" : "eval"));
      if (bars) result.detail += histogram(report, width > 0 ? width : kBarWidth, color);
      if (const std::string unused = unused_rows(report, max_length); !unused.empty())
        result.warnings.push_back(unused);
      for (const NothingLearnt& entry : report.nothing_learnt) {
        result.warnings.push_back(fmt::format("data {}: nothing is learnt of {} row{}: {} (first: {})", report.name,
                                              with_commas(entry.rows), plural(entry.rows), entry.cause,
                                              entry.first_where));
      }
    }
  };
  add(data.train_reports, true);
  add(data.eval_reports, false);
  if (data.eval.size() > 0) {
    result.text += fmt::format("  validation: {} samples, {} tokens{}\n", with_commas(data.eval.size()),
                               with_commas(data.eval.counts().tokens),
                               data.eval_reports.empty() ? ", drawn from the rows above" : "");
  }
  const Repeats duplicates = find_duplicates(data), leaks = find_leaks(data);
  warn_of_repeats(duplicates, "repeat an earlier one, white space aside", "training rows", result.warnings);
  warn_of_repeats(leaks, "are in the training data, so evaluation looks better than it is", "validation rows",
                  result.warnings);
  result.facts = Json{{"sets", std::move(sets)}, {"duplicates", facts_of(duplicates)}, {"leaks", facts_of(leaks)}};
  return result;
}

TurnEnds turn_ends(const SampleStore& store, const SpecialTokens& special) {
  constexpr int64_t kSamples = 1000;
  TurnEnds ends;
  std::map<int32_t, int64_t> last_tokens;
  ends.samples = std::min(kSamples, store.size());
  for (int64_t i = 0; i < ends.samples; ++i) {
    const SampleView sample = store[i];
    const auto is_bos = [&](size_t at) {
      return special.bos && at < sample.input_ids.size() && sample.input_ids[at] == *special.bos;
    };
    ends.bos += is_bos(0) ? 1 : 0;
    ends.doubled_bos += is_bos(0) && is_bos(1) ? 1 : 0;
    for (size_t at = 1; at < sample.labels.size(); ++at) {
      const bool last = sample.labels[at] != kIgnoredLabel &&
                        (at + 1 == sample.labels.size() || sample.labels[at + 1] == kIgnoredLabel);
      if (!last) continue;
      ++ends.answers;
      const auto stops = [&](size_t position) {
        return std::find(special.stop.begin(), special.stop.end(), sample.labels[position]) != special.stop.end();
      };
      // With train_on: all, the text that a template writes after the end-of-turn token is supervised, too.
      const size_t end = stops(at) || at == 0 ? at : at - 1;
      if (!stops(end)) continue;
      ++ends.stopped;
      ++last_tokens[sample.labels[end]];
    }
  }
  const auto most = std::max_element(last_tokens.begin(), last_tokens.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most != last_tokens.end()) ends.id = most->first;
  return ends;
}

namespace {

/// `count` positions spread evenly over a store of `size` samples, including the first.
std::vector<int64_t> spread_positions(int64_t size, int64_t count) {
  std::vector<int64_t> positions;
  const int64_t shown = std::min(size, count);
  for (int64_t i = 0; i < shown; ++i) positions.push_back(i * size / shown);
  return positions;
}

/// Samples as text with their masks; spans of more than `max_span` tokens are shortened (0: never).
std::string masked_samples(const TrainingData& data, const std::vector<int64_t>& positions, const Tokenizer* tokenizer,
                           size_t max_span, bool color) {
  std::string text;
  for (const int64_t position : positions) {
    const SampleView sample = data.train[position];
    const std::string& name = data.train_names[static_cast<size_t>(sample.dataset)];
    text += styled(fmt::format("── sample {} of {}, {}", with_commas(position + 1), name,
                               where_of(sample, data.train_reports)),
                   Style::kBold, color) +
            "\n";
    text += text_mask(preview_sample(data.train, position, tokenizer, max_span), color);
  }
  return text;
}

/// The first `lines` lines of a sample's text; the first line is a title, the last one counts supervised tokens.
std::string beginning_of(const std::string& sample, size_t lines) {
  const std::vector<std::string> all = split_lines(sample);
  if (all.size() <= lines + 2) return sample;
  std::string text;
  for (size_t i = 0; i <= lines; ++i) text += all[i] + "\n";
  return text + fmt::format("… {} more lines (hone prepare shows them)\n{}\n", all.size() - lines - 2, all.back());
}

void describe_ends(const TurnEnds& ends, const Tokenizer& tokenizer, const TokenizerConfig& config,
                   DataReport& result) {
  const SpecialTokens& special = tokenizer.special_tokens();
  const auto token = [&](int32_t id) { return fmt::format("{} ({})", tokenizer.id_to_token(id).value_or("?"), id); };
  if (special.bos) {
    const std::string twice =
        ends.doubled_bos > 0 ? fmt::format("; {} of them have it twice", with_commas(ends.doubled_bos)) : "";
    result.text += fmt::format("beginning: {} in front of {} of {} samples{}\n", token(*special.bos),
                               with_commas(ends.bos), with_commas(ends.samples), twice);
  }
  if (!ends.id) {
    result.text += fmt::format("end of turn: none of {} answers ends with a token that ends generation\n",
                               with_commas(ends.answers));
    return;
  }
  const auto& listed = config.generation_eos_ids;
  const bool in_generation = std::find(listed.begin(), listed.end(), *ends.id) != listed.end();
  result.text += fmt::format("end of turn: {}, one token, learnt at the end of {} of {} answers; {}\n", token(*ends.id),
                             with_commas(ends.stopped), with_commas(ends.answers),
                             in_generation    ? "in eos_token_id of generation_config.json"
                             : listed.empty() ? "it is eos_token (generation_config.json has no eos_token_id)"
                                              : "not in eos_token_id of generation_config.json");
  if (!in_generation && !listed.empty()) {
    result.warnings.push_back(
        fmt::format("answers end with {}, which is not in eos_token_id of generation_config.json: other programs would "
                    "not stop there; add {} to it",
                    token(*ends.id), *ends.id));
  }
}

}  // namespace

DataReport proof_sheet(const TrainingData& data, const Tokenizer* tokenizer, const TokenizerConfig& config,
                       std::optional<int64_t> samples, bool color) {
  constexpr int64_t kShown = 3;
  constexpr size_t kLongestSpan = 120, kBriefSpan = 40;  // in tokens
  DataReport result;
  result.detail = masked_samples(data, spread_positions(data.train.size(), samples.value_or(kShown)), tokenizer,
                                 samples ? 0 : kLongestSpan, color);
  result.brief = beginning_of(
      masked_samples(data, spread_positions(data.train.size(), 1), tokenizer, kBriefSpan, color), kBriefLines);
  if (tokenizer) {
    describe_ends(turn_ends(data.train, tokenizer->special_tokens()), *tokenizer, config, result);
  }
  return result;
}

}  // namespace hone
