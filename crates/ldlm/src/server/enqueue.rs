//! `LDLM_ENQUEUE`, except intents of the metadata target.

use super::{LockServer, holder};
use crate::action::{LockRequest, Placement, Refusal};
use crate::lock::{Lock, LockId};
use crate::mode::LockMode;
use crate::policy::{LockType, Policy};
use crate::request;
use bytes::Bytes;
use rpc::{Export, Reply, ServerRequest};
use wire::format::bufs;
use wire::{Errno, LdlmLockDesc, LdlmReply, LdlmRequest, Nid, WireStruct};

impl LockServer {
    /// Handles an `LDLM_ENQUEUE`, except intents of the metadata target. If the lock must wait, the
    /// reply says so at once, and a completion AST reports the grant. A replay never waits for the
    /// limit of locks.
    ///
    /// # Errors
    ///
    /// - `EPROTO`: the request is malformed.
    /// - `EINVAL`: clients cannot take such a lock, the resource has locks of another type, or the
    ///   mode does not suit a flock.
    /// - `EAGAIN`: the lock would have to wait, and the request forbids waiting.
    /// - `EDEADLK`: the wait would be a deadlock.
    /// - `ENOLCK`: the shard's lock table is full.
    /// - `ENOMEM`: the limit of locks is reached.
    /// - `ENOTCONN`: the client has disconnected.
    pub async fn enqueue(&self, req: &mut ServerRequest) -> Result<Reply, Errno> {
        let dlm = request::parse(req.buf(bufs::DLM_REQ))?;
        let has_intent = u64::from(dlm.lock_flags) & wire::LDLM_FL_HAS_INTENT != 0;
        self.enqueue_or_glimpse(req, has_intent).await
    }

    /// Handles an `LDLM_ENQUEUE` as [`LockServer::enqueue`] does. `glimpses`: a request for a lock
    /// with a value block is a glimpse.
    ///
    /// # Errors
    ///
    /// As [`LockServer::enqueue`].
    pub async fn enqueue_or_glimpse(&self, req: &mut ServerRequest, glimpses: bool) -> Result<Reply, Errno> {
        let mut dlm = request::parse(req.buf(bufs::DLM_REQ))?;
        self.cancel(
            &req.export,
            &request::handles_to_cancel(req.buf(bufs::DLM_REQ), wire::LDLM_ENQUEUE_CANCEL_OFF as usize),
        );
        let lock_request = self.parse_request(req, &dlm)?;
        self.register_export(&req.export)?;
        let blocked_flags = u64::from(dlm.lock_flags) & wire::LDLM_FL_BLOCKED_MASK;
        // A replay has these flags for the server; in the reply they are for the client.
        dlm.lock_flags &= !(wire::LDLM_FL_BLOCKED_MASK as u32);
        let placement = if self.is_replay(&req.export, &dlm) {
            self.replay(&lock_request, blocked_flags)
        } else {
            self.claim(&req.export, &lock_request).await?;
            if let Some(lock) = self.find_earlier_attempt(req, &dlm, &lock_request) {
                return self.lock_reply(&req.export, &dlm, &lock, 0).await;
            }
            if glimpses && lock_request.policy.has_value_block() {
                return self.glimpse(req, &dlm, lock_request).await;
            }
            self.wait_below_limit().await?;
            self.enqueue_in_shard(&lock_request)
        };
        match placement.map_err(errno_of)? {
            Placement::Granted(id) => {
                self.check_connected(&req.export, id)?;
                match self.lock_of(id) {
                    Some(lock) => self.lock_reply(&req.export, &dlm, &lock, 0).await,
                    // The lock was revoked and cancelled before this reply: the client handles it
                    // like any other revoked lock.
                    None => {
                        self.lock_reply(&req.export, &dlm, &transient_lock(&lock_request, id, true), 0)
                            .await
                    }
                }
            }
            Placement::Queued { id, granted_conflict } => {
                self.check_connected(&req.export, id)?;
                let mut flags = if granted_conflict {
                    wire::LDLM_FL_BLOCK_GRANTED
                } else {
                    wire::LDLM_FL_BLOCK_WAIT
                };
                if lock_request.policy.ty() == LockType::Extent {
                    flags |= wire::LDLM_FL_NO_TIMEOUT;
                }
                // If the lock is granted by now, the completion AST is on its way.
                self.lock_reply(
                    &req.export,
                    &dlm,
                    &transient_lock(&lock_request, id, false),
                    flags,
                )
                .await
            }
            Placement::Unlocked(id) => {
                self.lock_reply(&req.export, &dlm, &transient_lock(&lock_request, id, true), 0)
                    .await
            }
            Placement::Tested { id, conflict } => self.test_reply(&dlm, id, conflict),
        }
    }

    fn enqueue_in_shard(&self, lock_request: &LockRequest) -> Result<Placement, Refusal> {
        self.with_shard(
            self.shard_of(&lock_request.res, lock_request.policy.ty()),
            |ns, now, out| ns.enqueue(now, lock_request, out),
        )
    }

    /// Parses and checks the request.
    fn parse_request(&self, req: &ServerRequest, dlm: &LdlmRequest) -> Result<LockRequest, Errno> {
        let flags = u64::from(dlm.lock_flags);
        let desc = &dlm.lock_desc;
        let cookie = dlm.lock_handle[0];
        if flags & !wire::LDLM_FL_WIRE_REQ_FLAGS_MASK != 0 || cookie == 0 {
            return Err(Errno::EPROTO);
        }
        let ty = LockType::from_wire(desc.l_resource.lr_type).ok_or(Errno::EPROTO)?;
        let mode = LockMode::requested(desc).ok_or(Errno::EPROTO)?;
        let policy = Policy::from_wire(ty, &desc.l_policy_data).ok_or(Errno::EPROTO)?;
        if matches!(mode, LockMode::Cos | LockMode::Txn) {
            return Err(Errno::EPROTO);
        }
        let [.., third, name_hash] = desc.l_resource.lr_name.name;
        // The first two words identify an inode. If another word is not 0 (the hash of a name), the
        // resource is for the server's own locks.
        let server_only = ty == LockType::Ibits && (third, name_hash) != (0, 0);
        if server_only || !self.types.contains(&ty) {
            let (ns, client, res) = (&self.name, &req.export.client_uuid, &desc.l_resource.lr_name.name);
            lnet::warn_rate_limited!(ns, %client, peer = %req.peer, ?ty, ?res, "enqueue refused: clients cannot take this lock on this target");
            return Err(Errno::EINVAL);
        }
        let has = |flag: u64| flags & flag != 0;
        Ok(LockRequest {
            no_wait: has(wire::LDLM_FL_SPECULATIVE)
                || (has(wire::LDLM_FL_BLOCK_NOWAIT) && ty != LockType::Extent),
            no_group_wait: has(wire::LDLM_FL_BLOCK_NOWAIT),
            test: has(wire::LDLM_FL_TEST_LOCK),
            no_expansion: has(wire::LDLM_FL_NO_EXPANSION | wire::LDLM_FL_BLOCKED_MASK),
            cancel_on_block: has(wire::LDLM_FL_CANCEL_ON_BLOCK),
            report_deadlock: req.export.has(wire::OBD_CONNECT_FLOCK_DEAD),
            node: Some(node_of(req.peer)),
            ..LockRequest::new(holder(&req.export), cookie, desc.l_resource.lr_name, mode, policy)
        })
    }

    /// The lock that an earlier attempt of the same request created. (Not for granted flocks: the
    /// range may have been merged into another, and granting it again changes nothing.)
    fn find_earlier_attempt(
        &self,
        req: &ServerRequest,
        dlm: &LdlmRequest,
        lock_request: &LockRequest,
    ) -> Option<Lock> {
        let is_repeated = req.is_resent() || u64::from(dlm.lock_flags) & wire::LDLM_FL_REPLAY != 0;
        if !is_repeated {
            return None;
        }
        let shard = self.shards[self.shard_of(&lock_request.res, lock_request.policy.ty())].lock();
        let found = shard.ns.find(lock_request.holder, lock_request.cookie)?;
        (found.res == lock_request.res && !(found.granted && lock_request.policy.ty() == LockType::Flock))
            .then(|| found.clone())
    }

    /// The reply that describes a lock, with its value block.
    pub(super) async fn lock_reply(
        &self,
        export: &Export,
        dlm: &LdlmRequest,
        lock: &Lock,
        flags: u64,
    ) -> Result<Reply, Errno> {
        let desc = lock.desc();
        let mut rep = LdlmReply {
            lock_flags: dlm.lock_flags | flags as u32,
            lock_desc: desc,
            ..LdlmReply::default()
        };
        if differs(&dlm.lock_desc, &desc) {
            rep.lock_flags |= wire::LDLM_FL_LOCK_CHANGED as u32;
        }
        if !lock.granted && flags == 0 {
            rep.lock_flags |= wire::LDLM_FL_BLOCK_WAIT as u32;
        }
        rep.lock_handle.cookie = lock.id.0;
        // A client that replays a lock has a newer value block than the server.
        let lvb = match lock.policy.has_value_block() && !self.is_replay(export, dlm) {
            true => self.lvb_for(export, &lock.res).await,
            false => Bytes::new(),
        };
        Ok(Reply::new(vec![rep.to_bytes(), lvb]))
    }

    /// The reply to a flock test: the conflicting lock, or mode NL.
    fn test_reply(&self, dlm: &LdlmRequest, id: LockId, conflict: Option<Lock>) -> Result<Reply, Errno> {
        let mut rep = LdlmReply {
            lock_flags: dlm.lock_flags,
            lock_desc: dlm.lock_desc,
            ..LdlmReply::default()
        };
        rep.lock_flags |= wire::LDLM_FL_LOCK_CHANGED as u32;
        rep.lock_desc.l_req_mode = LockMode::Nl.wire();
        if let Some(held) = conflict {
            rep.lock_desc = held.desc();
        }
        rep.lock_desc.l_granted_mode = 0;
        rep.lock_handle.cookie = id.0;
        Ok(Reply::new(vec![rep.to_bytes(), Bytes::new()]))
    }
}

/// Builds the lock for a reply from the request, because the table has no such lock, or may have it
/// in another state by now.
fn transient_lock(lock_request: &LockRequest, id: LockId, granted: bool) -> Lock {
    Lock {
        id,
        granted,
        ..Lock::from_request(lock_request)
    }
}

/// Whether a lock differs from the request, so that the client must use the reply's description.
fn differs(requested: &LdlmLockDesc, granted: &LdlmLockDesc) -> bool {
    requested.l_resource.lr_name != granted.l_resource.lr_name
        || requested.l_req_mode != granted.l_req_mode
        || requested.l_policy_data != granted.l_policy_data
}

fn errno_of(refusal: Refusal) -> Errno {
    match refusal {
        Refusal::WouldBlock => Errno::EAGAIN,
        Refusal::Deadlock => Errno::EDEADLK,
        Refusal::WrongType | Refusal::WrongMode => Errno::EINVAL,
        Refusal::Full => Errno::ENOLCK,
    }
}

/// The node of a client. All mounts with a loopback address are on the server's own node.
fn node_of(peer: Nid) -> Nid {
    if peer.is_tcp() && peer.addr().is_loopback() {
        Nid::LO
    } else {
        peer
    }
}
