//! Writes the seeds of all targets: `seeds CORPUS TESTS_OF_WIRE`.

use std::path::Path;

// Links the functions that the coverage counters call.
use libfuzzer_sys as _;

fn main() -> std::io::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [corpus, tests] = &args[..] else {
        return Err(std::io::Error::other("usage: seeds CORPUS TESTS_OF_WIRE"));
    };
    for (target, count) in nacre_fuzz::seeds::Seeds::all(Path::new(tests))?.write(Path::new(corpus))? {
        println!("{target}: {count} seeds");
    }
    Ok(())
}
