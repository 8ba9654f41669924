//! The source of a node's random numbers: seeds, UUIDs and keys.

use std::fmt;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::NodeError;

type Fill = dyn Fn(&mut [u8]) -> io::Result<()> + Send + Sync;

/// A source of random numbers. Clones share it.
#[derive(Clone)]
pub struct RandomSource(Arc<Fill>);

impl fmt::Debug for RandomSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RandomSource")
    }
}

impl RandomSource {
    /// A source that calls a function to fill a buffer. The bytes must differ in each process. With
    /// an MGS on the node, they must also be unpredictable: the MGS makes keys of them.
    pub fn new(fill: impl Fn(&mut [u8]) -> io::Result<()> + Send + Sync + 'static) -> RandomSource {
        RandomSource(Arc::new(fill))
    }

    /// The kernel's random numbers.
    pub fn system() -> RandomSource {
        RandomSource::new(|bytes| Ok(getrandom::fill(bytes)?))
    }

    /// A source for tests: its numbers follow from the seed.
    pub fn seeded(seed: u64) -> RandomSource {
        let rng = Mutex::new(fastrand::Rng::with_seed(seed));
        RandomSource::new(move |bytes| {
            rng.lock().fill(bytes);
            Ok(())
        })
    }

    /// Random bytes.
    ///
    /// # Errors
    ///
    /// The error of the source.
    pub fn bytes<const N: usize>(&self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        (self.0)(&mut bytes)?;
        Ok(bytes)
    }

    /// A random number.
    ///
    /// # Errors
    ///
    /// [`NodeError::Random`] with the error of the source.
    pub fn number(&self) -> Result<u64, NodeError> {
        let bytes = self.bytes().map_err(NodeError::Random)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// A random UUID (version 4).
    ///
    /// # Errors
    ///
    /// [`NodeError::Random`] with the error of the source.
    pub fn uuid(&self) -> Result<String, NodeError> {
        let bytes = self.bytes().map_err(NodeError::Random)?;
        Ok(uuid::Builder::from_random_bytes(bytes).into_uuid().to_string())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::RandomSource;

    #[test]
    fn uuids_differ_and_have_lustres_form() {
        let source = RandomSource::seeded(1);
        let uuid = source.uuid().unwrap();
        let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_ne!(uuid, source.uuid().unwrap());
    }

    #[test]
    fn seed_determines_the_numbers() {
        let numbers = |seed| {
            let source = RandomSource::seeded(seed);
            [source.number().unwrap(), source.number().unwrap()]
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
    }
}
