#include "report/mlflow/mlflow_resume.h"

#include <fstream>

#include "core/durable_file.h"
#include "core/error.h"
#include "core/untrusted_json.h"

namespace hone {
namespace {

std::string path_in(const std::string& folder) { return folder + "/mlflow_run.json"; }

}  // namespace

void write_mlflow_run(const MlflowOptions& options, const std::string& run_id, const std::string& folder) {
  const Json json = {{"tracking_uri", options.tracking_uri}, {"run_id", run_id}};
  try {
    write_durably(path_in(folder), json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  } catch (const UserError&) {  // a later start makes a new run
  }
}

void continue_mlflow_run(MlflowOptions& options, const std::string& folder) {
  std::ifstream file(path_in(folder));
  if (!file || !options.run_id.empty()) return;
  const Json json = parse_json(file);
  const bool same = json.is_object() && json.contains("run_id") && json["run_id"].is_string() &&
                    json.contains("tracking_uri") && json["tracking_uri"] == options.tracking_uri;
  if (!same) return;
  options.run_id = json["run_id"].get<std::string>();
  options.params.clear();
}

}  // namespace hone
