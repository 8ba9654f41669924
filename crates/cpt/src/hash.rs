//! The hash function of all tables of a node: foldhash, seeded by the operating system. A remote
//! peer that chooses keys cannot predict which of them collide.
//!
//! All randomness comes from [`std::hash::RandomState`], so one source decides the order of every
//! table. foldhash's own seeds would come from addresses and the time. The seed of a
//! node's handles is another one: peers see the handles and could compute their seed.
//!
//! Pure code uses [`SeededMap`] and [`SeededSet`]: they have no default, so their owner must pass a
//! [`HashSeed`]. All other code uses [`HashMap`] and [`HashSet`], which draw their own seeds.

use foldhash::SharedSeed;
use foldhash::fast::{FoldHasher, SeedableRandomState};
use std::cell::Cell;
use std::hash::{BuildHasher, RandomState};
#[cfg(not(feature = "sim"))]
use std::sync::OnceLock;

/// A map with a seed from [`HashState::default`].
pub type HashMap<K, V> = std::collections::HashMap<K, V, HashState>;
/// A set with a seed from [`HashState::default`].
pub type HashSet<T> = std::collections::HashSet<T, HashState>;
/// A map in pure code: made by `with_hasher`, with a seed from its owner.
pub type SeededMap<K, V> = std::collections::HashMap<K, V, HashSeed>;
/// A set in pure code: made by `with_hasher`, with a seed from its owner.
pub type SeededSet<T> = std::collections::HashSet<T, HashSeed>;

/// The secret of a table's hash function. Has no default, so that its owner decides where the
/// randomness comes from. Tables of one owner may share a seed.
#[derive(Clone, Debug)]
pub struct HashSeed(SeedableRandomState);

impl HashSeed {
    /// A seed that no peer can predict.
    #[inline]
    pub fn random() -> HashSeed {
        HashSeed(SeedableRandomState::with_seed(next_seed(), shared_seed()))
    }

    /// The same seed in every process; for tests.
    pub fn fixed(seed: u64) -> HashSeed {
        HashSeed(SeedableRandomState::with_seed(seed, SharedSeed::global_fixed()))
    }
}

impl BuildHasher for HashSeed {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        self.0.build_hasher()
    }
}

/// A [`HashSeed`] with a random default.
#[derive(Clone, Debug)]
pub struct HashState(HashSeed);

impl Default for HashState {
    #[inline]
    fn default() -> HashState {
        HashState(HashSeed::random())
    }
}

impl BuildHasher for HashState {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        self.0.build_hasher()
    }
}

/// A number from the standard library's random source.
fn random_number() -> u64 {
    RandomState::new().hash_one(())
}

/// A new number for each call. Each thread starts at a random number and takes a constant step per
/// call, which costs less than a random number per call.
#[inline]
fn next_seed() -> u64 {
    /// An odd number, so that the steps reach every value.
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    thread_local! {
        static NEXT: Cell<u64> = Cell::new(random_number());
    }
    let seed = NEXT.with(|next| next.replace(next.get().wrapping_add(STEP)));
    let product = u128::from(seed) * u128::from(STEP);
    (product >> 64) as u64 ^ product as u64
}

/// The part of the secret that all tables share. In a simulation it is the same for each run.
#[inline]
fn shared_seed() -> &'static SharedSeed {
    #[cfg(not(feature = "sim"))]
    static SHARED: OnceLock<SharedSeed> = OnceLock::new();
    // A constant, also for tables outside of nodes: a seed in a `static` would pass from the first
    // run in a process to later runs.
    #[cfg(feature = "sim")]
    return SharedSeed::global_fixed();
    #[cfg(not(feature = "sim"))]
    SHARED.get_or_init(|| SharedSeed::from_u64(random_number()))
}

#[cfg(test)]
mod tests {
    use super::{HashMap, HashSeed, HashState, SeededMap};
    use std::hash::BuildHasher;

    #[test]
    fn each_table_has_its_own_function() {
        let hashes = |state: HashState| (0..8u64).map(|n| state.hash_one(n)).collect::<Vec<_>>();
        assert_ne!(hashes(HashState::default()), hashes(HashState::default()));
        let elsewhere = std::thread::spawn(move || hashes(HashState::default()));
        assert_ne!(elsewhere.join().ok(), Some(hashes(HashState::default())));
    }

    #[test]
    fn equal_seeds_give_equal_orders() {
        let keys = |seed: u64| {
            let mut map = SeededMap::with_hasher(HashSeed::fixed(seed));
            map.extend((0..100u64).map(|n| (n, ())));
            map.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(keys(1), keys(1));
        assert_ne!(keys(1), keys(2));
    }

    #[test]
    fn clones_of_a_table_find_its_entries() {
        let mut map = HashMap::default();
        map.insert("key", 1);
        assert_eq!(map.clone().get("key"), Some(&1));
    }
}
