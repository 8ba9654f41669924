//! The command line of `nacre bench ior`, with IOR's options.

use clap::Args;

use super::bench::Load;

#[derive(Debug, Args)]
pub(crate) struct Ior {
    /// Test file, in an existing directory
    #[arg(short = 'o', value_name = "FILE", default_value = "testFile")]
    pub(crate) file: String,
    /// Bytes that each task accesses in one piece, in each segment (k, m, g and t for KiB to TiB)
    #[arg(short = 'b', value_name = "SIZE", default_value = "1m", value_parser = size)]
    pub(crate) block: u64,
    /// Bytes of each read and write
    #[arg(short = 't', value_name = "SIZE", default_value = "256k", value_parser = size)]
    pub(crate) transfer: u64,
    /// Number of segments; each has a block of every task
    #[arg(short = 's', value_name = "N", default_value_t = 1)]
    pub(crate) segments: u64,
    /// Use a file for each task
    #[arg(short = 'F')]
    pub(crate) file_per_task: bool,
    /// Only write (and read, with -r)
    #[arg(short = 'w')]
    pub(crate) write: bool,
    /// Only read (and write, with -w)
    #[arg(short = 'r')]
    pub(crate) read: bool,
    /// After writing, read the data back and compare it
    #[arg(short = 'W')]
    pub(crate) check_write: bool,
    /// Compare the data that is read
    #[arg(short = 'R')]
    pub(crate) check_read: bool,
    /// Each task reads what the next task has written
    #[arg(short = 'C')]
    pub(crate) reorder: bool,
    /// Transfer in random order
    #[arg(short = 'z')]
    pub(crate) random: bool,
    /// Seed of the data and of the random order
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Fsync after writing
    #[arg(short = 'e')]
    pub(crate) sync: bool,
    /// Direct I/O: bypass the caches of the client
    #[arg(short = 'B')]
    pub(crate) direct: bool,
    /// Time limit of each write and read
    #[arg(short = 'D', value_name = "SECONDS", default_value_t = 0)]
    pub(crate) stonewall_seconds: u64,
    /// Number of repetitions
    #[arg(short = 'i', value_name = "N", default_value_t = 1)]
    pub(crate) repetitions: usize,
    /// Keep the files
    #[arg(short = 'k')]
    pub(crate) keep: bool,
    /// Stripe count of new files [default: from the directory]
    #[arg(long, value_name = "N")]
    pub(crate) stripes: Option<u16>,
    #[command(flatten)]
    pub(crate) load: Load,
}

/// Parses a size such as `256k`.
fn size(text: &str) -> Result<u64, String> {
    let unit = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err("a size is a number with k, m, g, t or no unit".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "a size is a number".to_owned())?;
    number
        .checked_mul(1 << shift)
        .ok_or_else(|| "the size is too large".to_owned())
}

#[cfg(test)]
mod tests {
    use super::size;

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(size("256k"), Ok(256 << 10));
        assert_eq!(size("1M"), Ok(1 << 20));
        assert_eq!(size("7"), Ok(7));
        for bad in ["", "k", "1x", "1kb", "-1", "99999999t", "99999999999999999999"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }
}
