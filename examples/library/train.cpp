// Trains from a configuration and asks the result, in the process of another program:
//   cmake -S examples/library -B build-example && cmake --build build-example
//   build-example/train run.yaml "What is a mixture of experts?"
#include <hone/hone.h>

#include <cstdio>
#include <string>

namespace {

int failed(hone_error* error) {
  std::fprintf(stderr, "%s\n  where: %s\n  fix:   %s\n", hone_error_message(error), hone_error_where(error),
               hone_error_fix(error));
  const int code = hone_error_code(error);
  hone_error_free(error);
  return code;
}

/// The value of "key": "…" in a JSON object of plain texts.
std::string text_in(const std::string& json, const std::string& key) {
  const size_t begin = json.find("\"" + key + "\":\"") + key.size() + 4;
  return json.substr(begin, json.find('"', begin) - begin);
}

int print_row(void*, const char* row) { return std::printf("%s\n", row), 0; }
int print_text(void*, int64_t, const char* text) { return std::fputs(text, stdout), 0; }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "usage: train run.yaml PROMPT\n"), 2;
  const hone_listener listener = {nullptr, nullptr, print_row, print_text};
  hone_error* error = nullptr;

  char* result = nullptr;
  const std::string run = std::string(R"({"config": ")") + argv[1] + R"("})";
  if (hone_train(run.c_str(), &listener, &result, &error) != 0) return failed(error);
  const std::string trained = text_in(result, "output_dir");
  hone_text_free(result);

  hone_model* model = nullptr;
  const std::string settings = R"({"model": ")" + trained + R"("})";
  if (hone_model_open(settings.c_str(), nullptr, &model, &error) != 0) return failed(error);
  const std::string request = std::string(R"({"prompts": [")") + argv[2] + R"("], "max_new_tokens": 64})";
  const int code = hone_model_generate(model, request.c_str(), &listener, nullptr, &error);
  hone_model_free(model);
  if (code != 0) return failed(error);
  std::puts("");
  return 0;
}
