#include "app/cli.h"

int main(int argc, char** argv) { return hone::run_command_line(argc, argv); }
