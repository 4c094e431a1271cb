// The files of the page that shows a run, which are part of the program: markup, style, script.
#pragma once

#include <span>
#include <string_view>

namespace hone {

struct PageFile {
  std::string_view name;  ///< "page.js"
  std::string_view text;
};

/// All of them, from cmake/files_inside.cpp.in.
std::span<const PageFile> page_files();

}  // namespace hone
