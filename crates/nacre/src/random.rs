//! Random numbers from the kernel.

use std::io::{self, Read};

use anyhow::{Context, Result};
use node::RandomSource;

const SOURCE: &str = "/dev/urandom";

/// The source of random numbers for nodes of this process.
pub(crate) fn source() -> RandomSource {
    RandomSource::new(fill)
}

fn fill(bytes: &mut [u8]) -> io::Result<()> {
    std::fs::File::open(SOURCE)?.read_exact(bytes)
}

/// Random bytes.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes).with_context(|| format!("cannot read {SOURCE}"))?;
    Ok(bytes)
}

/// A random number.
pub(crate) fn number() -> Result<u64> {
    Ok(u64::from_le_bytes(bytes()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_bit_of_random_numbers_varies() {
        // A bit that is always 0 would be missing in `ones`, a bit that is always 1 in `zeros`. For
        // random numbers, this happens once in 2^57 runs.
        let (mut ones, mut zeros) = (0, 0);
        for _ in 0..64 {
            let number = number().unwrap();
            ones |= number;
            zeros |= !number;
        }
        assert_eq!((ones, zeros), (u64::MAX, u64::MAX));
    }
}
