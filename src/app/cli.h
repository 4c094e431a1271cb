// The command line: verbs, their options, and how errors end the program.
#pragma once

namespace hone {

/// Runs the program and returns its exit code (core/error.h). Errors are printed to standard error in a few lines.
int run_command_line(int argc, const char* const* argv);

}  // namespace hone
