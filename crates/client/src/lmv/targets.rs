//! The table of a mount's metadata targets, by index. Targets are added and never removed, so a
//! reference to one stays valid as long as the table.

use crate::mdc::Mdc;
use parking_lot::Mutex;
use std::sync::{Arc, OnceLock};

/// Number of targets in one block of the table.
const BLOCK: usize = 64;
/// Number of blocks. Lustre's file systems have at most 4096 MDTs.
const BLOCKS: usize = 64;

type Block = Box<[OnceLock<Arc<Mdc>>; BLOCK]>;

/// The targets by index.
pub(super) struct Targets {
    blocks: [OnceLock<Block>; BLOCKS],
    /// Held while a target is added.
    adding: Mutex<()>,
}

impl Targets {
    pub(super) fn new() -> Targets {
        Targets {
            blocks: std::array::from_fn(|_| OnceLock::new()),
            adding: Mutex::default(),
        }
    }

    /// The target with this index.
    pub(super) fn get(&self, index: u32) -> Option<&Arc<Mdc>> {
        let index = index as usize;
        self.blocks.get(index / BLOCK)?.get()?.get(index % BLOCK)?.get()
    }

    /// All targets, in order of their indexes.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Mdc>> {
        let blocks = self.blocks.iter().filter_map(OnceLock::get);
        blocks.flat_map(|block| block.iter().filter_map(OnceLock::get))
    }

    /// Adds the target that `build` makes unless the table has one with this index or has no space
    /// for the index. Returns the added target.
    pub(super) fn add(&self, index: u32, build: impl FnOnce() -> Arc<Mdc>) -> Option<&Arc<Mdc>> {
        let _adding = self.adding.lock();
        let block = self.blocks.get(index as usize / BLOCK)?;
        let block = block.get_or_init(|| Box::new(std::array::from_fn(|_| OnceLock::new())));
        let place = block.get(index as usize % BLOCK)?;
        if place.get().is_some() {
            return None;
        }
        Some(place.get_or_init(build))
    }
}
