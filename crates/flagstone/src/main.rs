//! The one binary. Everything is in the library, where tests reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    flagstone::cli::main()
}
