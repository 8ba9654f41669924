//! The state of a console's session: nodes, groups, batches and tests. No I/O.

use crate::command::{NodeState, TestKind};
use lst::NO_SID;
use tokio::time::Instant;
use wire::{Errno, LST_FEATS_MASK, LstSid, Nid};

/// The batch that every session has.
pub(crate) const DEFAULT_BATCH: &str = "batch";
/// Maximum number of groups, and of batches, of a session.
const NAMES_MAX: usize = 1024;

/// A console's session.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) sid: LstSid,
    /// The features of the session; the first node decides.
    pub(crate) feats: u32,
    /// Whether a node has decided the features.
    features_fixed: bool,
    pub(crate) nodes: Vec<NodeInfo>,
    pub(crate) groups: Vec<Group>,
    pub(crate) batches: Vec<Batch>,
    /// The id of the last created batch.
    last_batch_id: u64,
}

/// A node as the console knows it.
#[derive(Debug, Clone)]
pub(crate) struct NodeInfo {
    pub(crate) nid: Nid,
    pub(crate) state: NodeState,
    /// The node leaves the session after this many seconds without requests; 0: never.
    pub(crate) timeout_s: u32,
    /// Time of the node's last reply, or of its addition to the session.
    pub(crate) last_reply: Instant,
}

/// A named group of nodes.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    pub(crate) nids: Vec<Nid>,
}

/// A named batch of tests.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) name: String,
    pub(crate) id: u64,
    /// Whether the console has started the batch and has not found it stopped.
    pub(crate) running: bool,
    pub(crate) tests: Vec<Test>,
    pub(crate) clients: Vec<Nid>,
    pub(crate) servers: Vec<Nid>,
}

/// A test of a batch.
#[derive(Debug, Clone)]
pub(crate) struct Test {
    pub(crate) kind: TestKind,
    /// Number of requests that each test unit sends; negative: until stopped. For each server, a
    /// client runs `concurrency` units, each with one request in flight.
    pub(crate) loops: i32,
    /// Requests in flight from each client to each of its servers.
    pub(crate) concurrency: u32,
    /// The group of clients.
    pub(crate) from: String,
    /// The group of servers.
    pub(crate) to: String,
}

/// The number of nodes in each state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) active: usize,
    pub(crate) busy: usize,
    pub(crate) down: usize,
    pub(crate) unknown: usize,
}

impl State {
    pub(crate) fn new(sid: LstSid, feats: u32) -> State {
        let mut state = State {
            sid,
            feats,
            features_fixed: false,
            nodes: Vec::new(),
            groups: Vec::new(),
            batches: Vec::new(),
            last_batch_id: 0,
        };
        // This cannot fail: there is no other batch yet.
        let _ = state.add_batch(DEFAULT_BATCH);
        state
    }

    /// Whether a node with these features can join. The first node decides the session's features.
    pub(crate) fn accept_features(&mut self, feats: u32) -> bool {
        if feats & !LST_FEATS_MASK != 0 {
            return false;
        }
        if !self.features_fixed {
            (self.features_fixed, self.feats) = (true, feats);
        }
        self.feats == feats
    }

    // ---- nodes

    pub(crate) fn state_of(&self, nid: Nid) -> NodeState {
        self.nodes
            .iter()
            .find(|n| n.nid == nid)
            .map_or(NodeState::Unknown, |n| n.state)
    }

    /// The entry of a node, created if missing.
    pub(crate) fn node_entry(&mut self, now: Instant, nid: Nid) -> &mut NodeInfo {
        let index = match self.nodes.iter().position(|n| n.nid == nid) {
            Some(index) => index,
            None => {
                self.nodes.push(NodeInfo {
                    nid,
                    state: NodeState::Unknown,
                    timeout_s: 0,
                    last_reply: now,
                });
                self.nodes.len() - 1
            }
        };
        &mut self.nodes[index]
    }

    /// Updates a node's state. `session` is the session that the node's reply names; `None` if
    /// there is no such reply.
    pub(crate) fn update_node(&mut self, now: Instant, nid: Nid, session: Option<LstSid>) -> NodeState {
        let own_sid = self.sid;
        let node = self.node_entry(now, nid);
        node.state = match session {
            None => NodeState::Down,
            Some(sid) if sid.ses_nid == NO_SID.ses_nid => NodeState::Unknown,
            Some(sid) if sid == own_sid => NodeState::Active,
            Some(_) => NodeState::Busy,
        };
        if session.is_some() {
            node.last_reply = now;
        }
        node.state
    }

    /// The number of nodes in each state among `nids`.
    pub(crate) fn tally(&self, nids: &[Nid]) -> Tally {
        let mut tally = Tally::default();
        for &nid in nids {
            *match self.state_of(nid) {
                NodeState::Active => &mut tally.active,
                NodeState::Busy => &mut tally.busy,
                NodeState::Down => &mut tally.down,
                NodeState::Unknown => &mut tally.unknown,
            } += 1;
        }
        tally
    }

    /// Removes nodes that are in no group and no batch.
    pub(crate) fn remove_unused_nodes(&mut self) {
        let used = |nid: &Nid| {
            self.groups.iter().any(|g| g.nids.contains(nid))
                || self
                    .batches
                    .iter()
                    .any(|b| b.clients.contains(nid) || b.servers.contains(nid))
        };
        let keep: Vec<bool> = self.nodes.iter().map(|n| used(&n.nid)).collect();
        let mut keep = keep.into_iter();
        self.nodes.retain(|_| keep.next().unwrap_or(true));
    }

    /// The active nodes of `nids` that are in no batch, and in no group but `name`.
    pub(crate) fn nodes_used_only_by(&self, name: &str, nids: &[Nid]) -> Vec<Nid> {
        let used_elsewhere = |nid: &Nid| {
            self.groups.iter().any(|g| g.name != name && g.nids.contains(nid))
                || self
                    .batches
                    .iter()
                    .any(|b| b.clients.contains(nid) || b.servers.contains(nid))
        };
        let matches = |nid: &Nid| self.state_of(*nid) == NodeState::Active && !used_elsewhere(nid);
        nids.iter().copied().filter(matches).collect()
    }

    // ---- groups

    pub(crate) fn group(&self, name: &str) -> Result<&Group, Errno> {
        self.groups.iter().find(|g| g.name == name).ok_or(Errno::ENOENT)
    }

    /// A group that no test uses, to change it.
    ///
    /// # Errors
    ///
    /// `ENOENT`; `EBUSY` if a test uses the group.
    pub(crate) fn unused_group_mut(&mut self, name: &str) -> Result<&mut Group, Errno> {
        let used = |t: &Test| t.from == name || t.to == name;
        let busy = self.batches.iter().any(|b| b.tests.iter().any(used));
        let group = self
            .groups
            .iter_mut()
            .find(|g| g.name == name)
            .ok_or(Errno::ENOENT)?;
        if busy { Err(Errno::EBUSY) } else { Ok(group) }
    }

    pub(crate) fn add_group(&mut self, name: &str) -> Result<(), Errno> {
        if self.group(name).is_ok() {
            return Err(Errno::EEXIST);
        }
        if self.groups.len() >= NAMES_MAX {
            return Err(Errno::ENOMEM);
        }
        self.groups.push(Group {
            name: name.to_owned(),
            nids: Vec::new(),
        });
        Ok(())
    }

    /// Removes nodes from a group, and the group if it is then empty.
    pub(crate) fn remove_from(&mut self, name: &str, is_removed: impl Fn(Nid) -> bool) {
        for group in self.groups.iter_mut().filter(|g| g.name == name) {
            group.nids.retain(|&nid| !is_removed(nid));
        }
        self.groups.retain(|g| g.name != name || !g.nids.is_empty());
        self.remove_unused_nodes();
    }

    // ---- batches

    pub(crate) fn batch(&self, name: &str) -> Result<&Batch, Errno> {
        self.batches.iter().find(|b| b.name == name).ok_or(Errno::ENOENT)
    }

    pub(crate) fn batch_mut(&mut self, name: &str) -> Result<&mut Batch, Errno> {
        self.batches
            .iter_mut()
            .find(|b| b.name == name)
            .ok_or(Errno::ENOENT)
    }

    pub(crate) fn add_batch(&mut self, name: &str) -> Result<(), Errno> {
        if self.batch(name).is_ok() {
            return Err(Errno::EEXIST);
        }
        if self.batches.len() >= NAMES_MAX {
            return Err(Errno::ENOMEM);
        }
        self.last_batch_id += 1;
        self.batches.push(Batch {
            name: name.to_owned(),
            id: self.last_batch_id,
            running: false,
            tests: Vec::new(),
            clients: Vec::new(),
            servers: Vec::new(),
        });
        Ok(())
    }
}

/// The servers of the client with this index. Each `dist` consecutive clients share `span` servers;
/// the next clients get the next `span` servers, wrapping around `group`.
///
/// # Errors
///
/// `EINVAL`: `dist` or `span` is 0, or `group` has fewer than `span` nodes.
pub(crate) fn servers_of(index: usize, dist: usize, span: usize, group: &[Nid]) -> Result<Vec<Nid>, Errno> {
    if span == 0 || dist == 0 || span > group.len() {
        return Err(Errno::EINVAL);
    }
    let start = (index / dist * span) % group.len();
    Ok(group.iter().cycle().skip(start).take(span).copied().collect())
}

/// The estimated maximum of requests that a server of a test gets at once. Lustre's nodes reserve
/// buffers for that many.
pub(crate) fn server_concurrency(
    clients: usize,
    servers: usize,
    dist: u32,
    span: u32,
    concurrency: u32,
) -> u32 {
    let groups_of_clients = clients.div_ceil(dist.max(1) as usize);
    let groups_of_servers = servers.div_ceil(span.max(1) as usize).max(1);
    let clients_per_server = groups_of_clients.div_ceil(groups_of_servers) as u32;
    clients_per_server
        .saturating_mul(dist)
        .saturating_mul(concurrency)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::net::Ipv4Addr;

    fn nids(n: u32) -> Vec<Nid> {
        (1..=n).map(|i| Nid::tcp(Ipv4Addr::from_bits(i), 0)).collect()
    }

    fn servers_by_client(clients: usize, servers: u32, dist: usize, span: usize) -> Vec<Vec<u32>> {
        let servers = nids(servers);
        let servers_of = |i| servers_of(i, dist, span, &servers).unwrap();
        (0..clients)
            .map(|i| servers_of(i).iter().map(|n| n.0 as u32).collect())
            .collect()
    }

    #[test]
    fn clients_are_distributed_over_servers_by_ratio() {
        assert_eq!(servers_by_client(4, 2, 1, 1), [[1], [2], [1], [2]]);
        assert_eq!(
            servers_by_client(3, 4, 1, 4),
            [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]
        );
        assert_eq!(servers_by_client(4, 3, 2, 2), [[1, 2], [1, 2], [3, 1], [3, 1]]);
        assert_eq!(servers_of(0, 1, 3, &nids(2)), Err(Errno::EINVAL));
        assert_eq!(server_concurrency(4, 2, 1, 1, 8), 16);
        assert_eq!(server_concurrency(4, 3, 2, 2, 1), 2);
    }

    #[test]
    fn first_node_decides_the_features() {
        let mut state = State::new(NO_SID, 1);
        assert!(!state.accept_features(2));
        assert!(state.accept_features(0) && state.accept_features(0) && !state.accept_features(1));
        assert_eq!(state.feats, 0);
    }

    #[test]
    fn group_that_becomes_empty_is_removed_with_its_unused_nodes() {
        let mut state = State::new(NO_SID, 1);
        let now = Instant::now();
        for name in ["a", "b"] {
            state.add_group(name).unwrap();
        }
        assert_eq!(state.add_group("a"), Err(Errno::EEXIST));
        for (name, n) in [("a", 2), ("b", 1)] {
            state.unused_group_mut(name).unwrap().nids = nids(n);
        }
        for nid in nids(2) {
            let sid = state.sid;
            state.node_entry(now, nid).state = NodeState::Active;
            assert_eq!(
                state.update_node(now, nid, Some(LstSid { ses_nid: nid, ..sid })),
                NodeState::Busy
            );
        }
        state.remove_from("a", |_| true);
        assert!(state.group("a").is_err());
        assert_eq!(state.nodes.iter().map(|n| n.nid).collect::<Vec<_>>(), nids(1));
    }
}
