//! LNet selftest between nodes on loopback addresses.

mod common;
mod console;
mod tests_run;
