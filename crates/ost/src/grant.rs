//! Grants: space that is promised to clients, so that they may cache writes that cannot fail for want of it.
//!
//! Rules of guide 8.6, without I/O: what is free is an argument. A client is told at its connect how much it has; every
//! read and write says what it has cached, lost and used, and how much more it would like; a write's reply gives it more.
//! What is promised to all never exceeds what is free.

use foldhash::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The books of one target.
#[derive(Default)]
pub(crate) struct Grants {
    clients: Mutex<HashMap<String, Arc<ClientGrant>>>,
    /// Promised to all clients and not yet written, bytes.
    promised: Mutex<Promised>,
}

#[derive(Default)]
struct Promised {
    /// In clients' hands.
    granted_bytes: u64,
    /// Used by writes that are being done: not yet taken from the free space.
    pending_bytes: u64,
}

/// What one client has.
#[derive(Debug, Default)]
pub(crate) struct ClientGrant(Mutex<Client>);

#[derive(Debug, Default)]
struct Client {
    granted_bytes: u64,
    dirty_bytes: u64,
    gone: bool,
}

/// What a client says with a read or a write (`o_dirty`, `o_dropped`, `o_grant_used`, `o_undirty`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Cached and not yet sent.
    pub(crate) dirty_bytes: u64,
    /// Lost: granted once, no longer known.
    pub(crate) dropped_bytes: u64,
    /// Used by this request.
    pub(crate) used_bytes: u64,
}

/// Grant that a write uses, until it is done.
pub(crate) struct Pending<'a> {
    grants: &'a Grants,
    bytes: u64,
}

impl Drop for Pending<'_> {
    fn drop(&mut self) {
        let mut p = self.grants.promised.lock();
        p.pending_bytes = p.pending_bytes.saturating_sub(self.bytes);
    }
}

impl Grants {
    /// The books of a client; begun when it is new.
    pub(crate) fn client(&self, uuid: &str) -> Arc<ClientGrant> {
        self.clients.lock().entry(uuid.to_owned()).or_default().clone()
    }

    /// A client connects and would like `wanted`: what it has now in all. One that connects for the first time gets a chunk; one
    /// that comes back (the chunk is then without limit) as much as it says that it had, if there is so much.
    pub(crate) fn connect(&self, uuid: &str, wanted_bytes: u64, chunk_bytes: u64, free_bytes: u64) -> u64 {
        let client = self.client(uuid);
        let has = client.0.lock().granted_bytes;
        let more = wanted_bytes.min(chunk_bytes).saturating_sub(has);
        has + self.give(&client, more, free_bytes)
    }

    /// Takes in what a client says; what it used is pending until the result is dropped.
    pub(crate) fn incoming(&self, client: &ClientGrant, report: &Report) -> Pending<'_> {
        let mut c = client.0.lock();
        let mut p = self.promised.lock();
        c.dirty_bytes = report.dirty_bytes;
        let dropped = report.dropped_bytes.min(c.granted_bytes);
        let used = report.used_bytes.min(c.granted_bytes - dropped);
        c.granted_bytes -= dropped + used;
        p.granted_bytes = p.granted_bytes.saturating_sub(dropped + used);
        p.pending_bytes += used;
        Pending {
            grants: self,
            bytes: used,
        }
    }

    /// More for a client that would like to have `wanted` in all: at most a chunk, and an eighth of what is left.
    pub(crate) fn more(
        &self,
        client: &ClientGrant,
        wanted_bytes: u64,
        chunk_bytes: u64,
        block_bytes: u64,
        free_bytes: u64,
    ) -> u64 {
        let has = client.0.lock().granted_bytes;
        let left = self.left(free_bytes);
        let more = wanted_bytes.saturating_sub(has).min(chunk_bytes).min(left / 8);
        self.give(client, more / block_bytes.max(1) * block_bytes, free_bytes)
    }

    /// A client gives some back.
    pub(crate) fn shrink(&self, client: &ClientGrant, bytes: u64) {
        let dirty_bytes = client.0.lock().dirty_bytes;
        self.incoming(
            client,
            &Report {
                dropped_bytes: bytes,
                dirty_bytes,
                used_bytes: 0,
            },
        );
    }

    /// A client is gone, with all that it had.
    pub(crate) fn forget(&self, uuid: &str) {
        let Some(client) = self.clients.lock().remove(uuid) else {
            return;
        };
        let mut c = client.0.lock();
        let mut p = self.promised.lock();
        p.granted_bytes = p.granted_bytes.saturating_sub(c.granted_bytes);
        *c = Client {
            gone: true,
            ..Client::default()
        };
    }

    /// What is free and promised to nobody: what a write without a grant may take.
    pub(crate) fn left(&self, free_bytes: u64) -> u64 {
        let p = self.promised.lock();
        free_bytes.saturating_sub(p.granted_bytes + p.pending_bytes)
    }

    /// Promised to all clients.
    pub(crate) fn total_granted(&self) -> u64 {
        self.promised.lock().granted_bytes
    }

    /// Cached by all clients, as far as they said.
    pub(crate) fn total_dirty(&self) -> u64 {
        let clients = self.clients.lock();
        let dirty = clients.values().map(|c| c.0.lock().dirty_bytes);
        dirty.fold(0, u64::saturating_add)
    }

    fn give(&self, client: &ClientGrant, bytes: u64, free_bytes: u64) -> u64 {
        let mut c = client.0.lock();
        let mut p = self.promised.lock();
        let left = free_bytes.saturating_sub(p.granted_bytes + p.pending_bytes);
        let given = if c.gone { 0 } else { bytes.min(left) };
        c.granted_bytes += given;
        p.granted_bytes += given;
        given
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_client_gets_a_chunk_and_uses_it() {
        let g = Grants::default();
        assert_eq!(g.connect("a", 128 * MIB, 8 * MIB, 1000 * MIB), 8 * MIB);
        let a = g.client("a");
        let report = Report {
            dirty_bytes: 3 * MIB,
            used_bytes: 2 * MIB,
            dropped_bytes: 0,
        };
        let pending = g.incoming(&a, &report);
        assert_eq!(g.left(1000 * MIB), 992 * MIB);
        assert_eq!(g.more(&a, 128 * MIB, 8 * MIB, 4096, 1000 * MIB), 8 * MIB);
        drop(pending);
        assert_eq!(g.total_granted(), 14 * MIB);
        assert_eq!(g.total_dirty(), 3 * MIB);
        assert_eq!(g.more(&a, 14 * MIB, 8 * MIB, 4096, 1000 * MIB), 0);
        g.shrink(&a, 4 * MIB);
        assert_eq!(g.total_granted(), 10 * MIB);
        g.forget("a");
        assert_eq!(g.total_granted(), 0);
        assert_eq!(g.more(&a, 14 * MIB, 8 * MIB, 4096, 1000 * MIB), 0);
    }

    #[test]
    fn clients_that_say_that_everything_is_dirty_are_added_up() {
        let g = Grants::default();
        let report = Report {
            dirty_bytes: u64::MAX,
            used_bytes: u64::MAX,
            dropped_bytes: u64::MAX,
        };
        drop((
            g.incoming(&g.client("a"), &report),
            g.incoming(&g.client("b"), &report),
        ));
        assert_eq!((g.total_dirty(), g.total_granted()), (u64::MAX, 0));
    }

    #[test]
    fn a_client_that_connects_again_keeps_what_it_had() {
        let g = Grants::default();
        g.connect("a", 128 * MIB, 8 * MIB, 1000 * MIB);
        assert_eq!(g.connect("a", 128 * MIB, 8 * MIB, 1000 * MIB), 8 * MIB);
        assert_eq!(g.total_granted(), 8 * MIB);
        // A restarted target knows nothing of what the client used.
        let restarted = Grants::default();
        assert_eq!(restarted.connect("a", 40 * MIB, u64::MAX, 1000 * MIB), 40 * MIB);
        assert_eq!(restarted.connect("b", 128 * MIB, u64::MAX, 100 * MIB), 60 * MIB);
    }

    proptest! {
        #[test]
        fn no_more_is_promised_than_is_free(
            steps in prop::collection::vec((0usize..3, 0u8..5, 0u64..64, 0u64..64), 1..60),
            free_mib in 0u64..200,
        ) {
            let g = Grants::default();
            let free = free_mib * MIB;
            let mut pending = Vec::new();
            for (who, what, a, b) in steps {
                let uuid = ["a", "b", "c"][who];
                let client = g.client(uuid);
                match what {
                    0 => { g.connect(uuid, a * MIB, 8 * MIB, free); }
                    1 => { g.more(&client, a * MIB, 8 * MIB, 4096, free); }
                    2 => {
                        let r = Report { dirty_bytes: 0, dropped_bytes: a * MIB, used_bytes: b * MIB };
                        pending.push(g.incoming(&client, &r));
                    }
                    3 => g.forget(uuid),
                    _ => { pending.pop(); }
                }
                let sum: u64 = g.clients.lock().values().map(|c| c.0.lock().granted_bytes).sum();
                let p = g.promised.lock();
                prop_assert_eq!(sum, p.granted_bytes);
                prop_assert!(p.granted_bytes + p.pending_bytes <= free);
            }
        }
    }
}
