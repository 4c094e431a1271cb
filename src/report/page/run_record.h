// What the folder of a run tells about it, as one JSON value for the page (report/page/page.h): a finished run, one
// that still goes on, one that was killed, or what is left of one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>

#include "core/text/json_fwd.h"
#include "report/page/answer_record.h"

namespace hone {

/// The files that a record is read from.
inline constexpr const char* kRecordFiles[] = {
    "metrics.jsonl",     "training_info.json",   "run_plan.json", "generations.jsonl",
    "expert_load.jsonl", "config.resolved.yaml", "run.log"};

/// How much of a run a record holds.
struct RecordLimits {
  size_t buckets = 600;                         ///< points in a series (report/page/series.h)
  size_t samples = AnswerRecord::kMostPrompts;  ///< prompts with answers
  size_t text = AnswerRecord::kMostText;        ///< bytes of a text
  size_t load_bytes = 400'000;                  ///< loads of experts, one for each row, layer and expert
  bool details = true;                          ///< false: without answers, experts and data, as for comparisons
};

/// Reads a folder:
///   name, folder, state {text, kind: done | stopped | open}, step, total_steps,
///   series {metric: series_json}, lines (of metrics.jsonl),
///   summary, as far as known: {loss: the last, eval_loss: the least after step 0, eval_step, tokens_per_second: the
///   mean without the first tenth of the steps, memory: the most bytes of the device in use,
///   seconds_left: as the last line has it, seconds: of the last
///   start}, info (training_info.json), plan (run_plan.json), config (text of config.resolved.yaml, without secrets),
///   answers [{prompt, expected, first: {step, text}, last: {step, text}}], load (load_record), warnings [{level, text,
///   times, last}], commands [{what, line}], notes [text]
/// Files that are missing are left out; what cannot be read in one is left out with a line in `notes`. Throws UserError
/// if the folder cannot be read, or has no file of a run.
Json read_run_record(const std::filesystem::path& folder, const RecordLimits& limits = {});

/// Reads the records of a folder in which a run goes on: at first whole, then of the files of lines what is new alone.
class RunRecordReader {
 public:
  explicit RunRecordReader(std::filesystem::path folder);
  ~RunRecordReader();
  RunRecordReader(const RunRecordReader&) = delete;
  RunRecordReader& operator=(const RunRecordReader&) = delete;

  /// As read_run_record() of the folder as it is now.
  Json read(const RecordLimits& limits = {});

 private:
  struct Files;
  std::unique_ptr<Files> files_;
};

}  // namespace hone
