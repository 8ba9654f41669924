//! Detects simulations that hang in real time because a thread blocks, or loops without an await
//! point.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The events of a simulation, as another thread sees them.
#[derive(Default)]
pub struct Progress {
    events: AtomicU64,
    last: Mutex<String>,
}

thread_local! {
    /// The events of this thread's simulation.
    static OWN: RefCell<Option<Arc<Progress>>> = const { RefCell::new(None) };
}

impl Progress {
    /// Makes [`count`] and [`note`] on this thread record their events here.
    pub(crate) fn attach(self: &Arc<Progress>) {
        OWN.set(Some(self.clone()));
    }

    /// Number of events so far.
    pub(crate) fn events(&self) -> u64 {
        self.events.load(Ordering::Relaxed)
    }

    /// The last event with a text.
    pub(crate) fn last(&self) -> String {
        self.last.lock().clone()
    }
}

fn with_own(f: impl FnOnce(&Progress)) {
    OWN.with_borrow(|own| own.as_deref().map(f));
}

/// Counts an event of this thread's simulation.
pub(crate) fn count() {
    with_own(|progress| {
        progress.events.fetch_add(1, Ordering::Relaxed);
    });
}

/// Records an event of this thread's simulation.
pub(crate) fn note(event: &str) {
    with_own(|progress| {
        progress.events.fetch_add(1, Ordering::Relaxed);
        event.clone_into(&mut progress.last.lock());
    });
}
