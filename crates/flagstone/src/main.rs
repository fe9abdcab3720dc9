//! The one binary. Everything is in the library, where tests reach it.

use std::process::ExitCode;

/// Its small allocations cost half of what the system's do, and most of ours are small.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    flagstone::cli::main()
}
