//! Grants: space that the target reserves for clients. Write-back from a client's cache then cannot
//! fail with ENOSPC.
//!
//! Implements the rules of docs/protocol.md, "Data (OST)", without I/O: callers pass the free
//! space. A client gets its first grant at connect. With each read and write it reports its dirty,
//! dropped and used bytes and the grant that it wants; the reply to a write grants more. A new
//! grant never raises the sum of all grants and of the grant that running writes use above the free
//! space.

use cpt::{HashSeed, SeededMap};
use std::sync::Arc;

use parking_lot::Mutex;

/// One request adds at most the unreserved space divided by this to a grant.
const GROWTH_DIVISOR: u64 = 8;

/// The grants of all clients of one target.
pub(crate) struct Grants {
    clients: Mutex<SeededMap<String, Arc<ClientGrant>>>,
    /// Space reserved for all clients.
    reserved: Mutex<Reservations>,
}

#[derive(Default)]
struct Reservations {
    /// Granted to clients and not yet used.
    granted_bytes: u64,
    /// Grant used by running writes. Their data does not reduce the free space yet.
    pending_bytes: u64,
}

/// The grant of one client.
#[derive(Debug, Default)]
pub(crate) struct ClientGrant(Mutex<Client>);

#[derive(Debug, Default)]
struct Client {
    /// Granted and not yet used.
    granted_bytes: u64,
    /// Dirty data in the client's cache, as last reported.
    dirty_bytes: u64,
    /// The client disconnected or was evicted: it gets no more grant.
    disconnected: bool,
}

/// The grant report of a read or write (`o_dirty`, `o_dropped`, `o_grant_used`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GrantReport {
    /// Dirty data in the client's cache.
    pub(crate) dirty_bytes: u64,
    /// Grant that the client gave up.
    pub(crate) dropped_bytes: u64,
    /// Grant used by this request.
    pub(crate) used_bytes: u64,
}

/// Grant used by a running write. Dropping it ends the reservation.
pub(crate) struct PendingGrant<'a> {
    grants: &'a Grants,
    bytes: u64,
}

impl Drop for PendingGrant<'_> {
    fn drop(&mut self) {
        let mut reserved = self.grants.reserved.lock();
        reserved.pending_bytes = reserved.pending_bytes.saturating_sub(self.bytes);
    }
}

impl Grants {
    /// Creates a table without clients. Clients choose the keys (their UUIDs), so the hash function
    /// has a seed.
    pub(crate) fn new(seed: HashSeed) -> Grants {
        Grants {
            clients: Mutex::new(SeededMap::with_hasher(seed)),
            reserved: Mutex::default(),
        }
    }

    /// The grant of a client, created on first use.
    pub(crate) fn client_grant(&self, uuid: &str) -> Arc<ClientGrant> {
        self.clients.lock().entry(uuid.to_owned()).or_default().clone()
    }

    /// Grants space at connect; returns the client's total grant. A client gets at most
    /// `chunk_bytes`. For a client that reconnects the caller passes `u64::MAX`: as far as space is
    /// free, the client gets back the grant that it reports.
    pub(crate) fn connect(&self, uuid: &str, wanted_bytes: u64, chunk_bytes: u64, free_bytes: u64) -> u64 {
        let client = self.client_grant(uuid);
        let current_bytes = client.0.lock().granted_bytes;
        let added = wanted_bytes.min(chunk_bytes).saturating_sub(current_bytes);
        current_bytes + self.grant(&client, added, free_bytes)
    }

    /// Applies a client's report. The grant that it used stays reserved until the result is
    /// dropped.
    pub(crate) fn apply_report(&self, client: &ClientGrant, report: &GrantReport) -> PendingGrant<'_> {
        let mut c = client.0.lock();
        let mut reserved = self.reserved.lock();
        c.dirty_bytes = report.dirty_bytes;
        let dropped = report.dropped_bytes.min(c.granted_bytes);
        let used = report.used_bytes.min(c.granted_bytes - dropped);
        c.granted_bytes -= dropped + used;
        reserved.granted_bytes = reserved.granted_bytes.saturating_sub(dropped + used);
        reserved.pending_bytes += used;
        PendingGrant {
            grants: self,
            bytes: used,
        }
    }

    /// Grants more to a client that wants `wanted_bytes` in total: at most `chunk_bytes`, and at
    /// most an eighth of the unreserved space, in whole blocks. Returns the added bytes.
    pub(crate) fn grow(
        &self,
        client: &ClientGrant,
        wanted_bytes: u64,
        chunk_bytes: u64,
        block_bytes: u64,
        free_bytes: u64,
    ) -> u64 {
        let current_bytes = client.0.lock().granted_bytes;
        let left = self.unreserved_bytes(free_bytes);
        let added = wanted_bytes
            .saturating_sub(current_bytes)
            .min(chunk_bytes)
            .min(left / GROWTH_DIVISOR);
        self.grant(client, added / block_bytes.max(1) * block_bytes, free_bytes)
    }

    /// A client returns part of its grant.
    pub(crate) fn shrink(&self, client: &ClientGrant, bytes: u64) {
        let dirty_bytes = client.0.lock().dirty_bytes;
        self.apply_report(
            client,
            &GrantReport {
                dropped_bytes: bytes,
                dirty_bytes,
                used_bytes: 0,
            },
        );
    }

    /// Releases the grant of a client that disconnected or was evicted.
    pub(crate) fn remove_client(&self, uuid: &str) {
        let Some(client) = self.clients.lock().remove(uuid) else {
            return;
        };
        let mut c = client.0.lock();
        let mut reserved = self.reserved.lock();
        reserved.granted_bytes = reserved.granted_bytes.saturating_sub(c.granted_bytes);
        *c = Client {
            disconnected: true,
            ..Client::default()
        };
    }

    /// Free space that is not reserved: a write without grant may use it.
    pub(crate) fn unreserved_bytes(&self, free_bytes: u64) -> u64 {
        let reserved = self.reserved.lock();
        free_bytes.saturating_sub(reserved.granted_bytes + reserved.pending_bytes)
    }

    /// Bytes granted to all clients and not yet used.
    pub(crate) fn total_granted(&self) -> u64 {
        self.reserved.lock().granted_bytes
    }

    /// Bytes of the grants that writes in progress use.
    pub(crate) fn total_pending(&self) -> u64 {
        self.reserved.lock().pending_bytes
    }

    /// Dirty bytes in all clients' caches, according to their reports.
    pub(crate) fn total_dirty(&self) -> u64 {
        let clients = self.clients.lock();
        let dirty = clients.values().map(|c| c.0.lock().dirty_bytes);
        dirty.fold(0, u64::saturating_add)
    }

    /// Adds up to `bytes` to a client's grant, as far as space is unreserved. Returns the added
    /// bytes.
    fn grant(&self, client: &ClientGrant, bytes: u64, free_bytes: u64) -> u64 {
        let mut c = client.0.lock();
        let mut reserved = self.reserved.lock();
        let left = free_bytes.saturating_sub(reserved.granted_bytes + reserved.pending_bytes);
        let added = if c.disconnected { 0 } else { bytes.min(left) };
        c.granted_bytes += added;
        if !cpt::Bug::GrantGivenTwice.is_planted() {
            reserved.granted_bytes += added;
        }
        added
    }

    /// Whether the total is the sum of the clients' grants.
    #[cfg(feature = "sim")]
    pub(crate) fn is_consistent(&self) -> bool {
        let clients = self.clients.lock();
        let sum: u64 = clients.values().map(|client| client.0.lock().granted_bytes).sum();
        sum == self.total_granted()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn client_gets_a_chunk_and_uses_it() {
        let g = Grants::new(HashSeed::fixed(0));
        assert_eq!(g.connect("a", 128 * MIB, 8 * MIB, 1000 * MIB), 8 * MIB);
        let a = g.client_grant("a");
        let report = GrantReport {
            dirty_bytes: 3 * MIB,
            used_bytes: 2 * MIB,
            dropped_bytes: 0,
        };
        let pending = g.apply_report(&a, &report);
        assert_eq!(g.unreserved_bytes(1000 * MIB), 992 * MIB);
        assert_eq!(g.grow(&a, 128 * MIB, 8 * MIB, 4096, 1000 * MIB), 8 * MIB);
        drop(pending);
        assert_eq!(g.total_granted(), 14 * MIB);
        assert_eq!(g.total_dirty(), 3 * MIB);
        assert_eq!(g.grow(&a, 14 * MIB, 8 * MIB, 4096, 1000 * MIB), 0);
        g.shrink(&a, 4 * MIB);
        assert_eq!(g.total_granted(), 10 * MIB);
        g.remove_client("a");
        assert_eq!(g.total_granted(), 0);
        assert_eq!(g.grow(&a, 14 * MIB, 8 * MIB, 4096, 1000 * MIB), 0);
    }

    #[test]
    fn huge_dirty_reports_do_not_overflow() {
        let g = Grants::new(HashSeed::fixed(0));
        let report = GrantReport {
            dirty_bytes: u64::MAX,
            used_bytes: u64::MAX,
            dropped_bytes: u64::MAX,
        };
        drop((
            g.apply_report(&g.client_grant("a"), &report),
            g.apply_report(&g.client_grant("b"), &report),
        ));
        assert_eq!((g.total_dirty(), g.total_granted()), (u64::MAX, 0));
    }

    #[test]
    fn reconnecting_client_keeps_its_grant() {
        let g = Grants::new(HashSeed::fixed(0));
        g.connect("a", 128 * MIB, 8 * MIB, 1000 * MIB);
        assert_eq!(g.connect("a", 128 * MIB, 8 * MIB, 1000 * MIB), 8 * MIB);
        assert_eq!(g.total_granted(), 8 * MIB);
        // A restarted target does not know the clients' grants.
        let restarted = Grants::new(HashSeed::fixed(0));
        assert_eq!(restarted.connect("a", 40 * MIB, u64::MAX, 1000 * MIB), 40 * MIB);
        assert_eq!(restarted.connect("b", 128 * MIB, u64::MAX, 100 * MIB), 60 * MIB);
    }

    proptest! {
        #[test]
        fn reserved_space_never_exceeds_free_space(
            steps in prop::collection::vec((0usize..3, 0u8..5, 0u64..64, 0u64..64), 1..60),
            free_mib in 0u64..200,
        ) {
            let g = Grants::new(HashSeed::fixed(0));
            let free = free_mib * MIB;
            let mut pending = Vec::new();
            for (client_index, step, a, b) in steps {
                let uuid = ["a", "b", "c"][client_index];
                let client = g.client_grant(uuid);
                match step {
                    0 => { g.connect(uuid, a * MIB, 8 * MIB, free); }
                    1 => { g.grow(&client, a * MIB, 8 * MIB, 4096, free); }
                    2 => {
                        let r = GrantReport { dirty_bytes: 0, dropped_bytes: a * MIB, used_bytes: b * MIB };
                        pending.push(g.apply_report(&client, &r));
                    }
                    3 => g.remove_client(uuid),
                    _ => { pending.pop(); }
                }
                let sum: u64 = g.clients.lock().values().map(|c| c.0.lock().granted_bytes).sum();
                let reserved = g.reserved.lock();
                prop_assert_eq!(sum, reserved.granted_bytes);
                prop_assert!(reserved.granted_bytes + reserved.pending_bytes <= free);
            }
        }
    }
}
