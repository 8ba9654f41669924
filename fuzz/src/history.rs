//! The inputs since the start of the servers. A failure writes them to files, because the last
//! input alone may not reproduce the failure on new servers.

use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

/// The variable with the directory for the files; without it none are written.
const DIR_VARIABLE: &str = "NACRE_FUZZ_HISTORY";

static INPUTS: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Forgets all inputs.
pub fn clear() {
    static HOOK: Once = Once::new();
    HOOK.call_once(write_after_panics);
    INPUTS.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Adds an input.
pub fn add(input: &[u8]) {
    INPUTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .push(input.to_vec());
}

/// Makes a panic write the inputs before libFuzzer's hook ends the process.
fn write_after_panics() {
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if let Some(dir) = std::env::var_os(DIR_VARIABLE) {
            write(Path::new(&dir));
        }
        hook(panic);
    }));
}

fn write(dir: &Path) {
    let Ok(inputs) = INPUTS.try_lock() else { return };
    for (i, input) in inputs.iter().enumerate() {
        // The panic is reported in any case.
        let _ = std::fs::write(dir.join(format!("{i:04}")), input);
    }
}
