//! Callbacks to clients: blocking ASTs (the lock is revoked) and completion ASTs (a waiting lock is
//! granted, or dropped as a deadlock).
//!
//! The server sends each callback in a separate task, with a limit of concurrent callbacks per
//! client. It evicts a client if a callback fails, and drops a lock that the client does not know.

use super::{ExportState, LockServer};
use crate::action::Action;
use crate::lock::{Holder, Lock, LockId};
use crate::request::dlm_req;
use bytes::Bytes;
use cpt::Bug;
use rpc::{Export, RpcError};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::{Errno, LdlmLockDesc, Message};

impl LockServer {
    /// Carries out the actions of a namespace, except wake-ups.
    pub(super) fn perform(&self, actions: Vec<Action>) {
        let Some(server) = self.me.upgrade() else { return };
        if actions.is_empty() {
            return;
        }
        if actions
            .iter()
            .any(|a| matches!(a, Action::Blocking { .. } | Action::Completion { .. }))
        {
            self.revoking.notify_one();
        }
        if !actions.iter().any(|a| matches!(a, Action::StaleLvb(_))) {
            return actions.into_iter().for_each(|a| server.start_action(a));
        }
        let tasks = server.tasks.clone();
        tasks.spawn(async move {
            // The next lock's value block must include the last writer's data.
            for action in &actions {
                if let Action::StaleLvb(res) = action {
                    server.lvb.update(res, None).await;
                }
            }
            actions.into_iter().for_each(|a| server.start_action(a));
        });
    }

    fn start_action(self: &Arc<Self>, action: Action) {
        let server = self.clone();
        match action {
            Action::Blocking {
                lock,
                blocked,
                discard,
            } => {
                self.tasks
                    .spawn(async move { server.send_blocking(lock, blocked, discard).await });
            }
            Action::Completion {
                lock,
                ast_sent,
                deadlock,
            } => {
                self.tasks
                    .spawn(async move { server.send_completion(lock, ast_sent, deadlock).await });
            }
            Action::Evict { holder, id, after } => {
                self.tasks.spawn(async move {
                    if let Some(export) = server.export(holder) {
                        let why = format!("lock {id:?} was not cancelled within {} s", after.as_secs());
                        server.evict(&export, &why).await;
                    }
                });
            }
            Action::StaleLvb(_) | Action::Wake { .. } => {}
        }
    }

    async fn send_blocking(&self, lock: Lock, blocked: LdlmLockDesc, discard: bool) {
        if Bug::BlockingCallbackNotSent.is_planted() {
            return;
        }
        let Some(export) = self.export(lock.holder) else {
            return;
        };
        let state = export.ext::<ExportState>();
        let Ok(_slot) = state.slots.acquire().await else {
            return;
        };
        if !lock.cancel_on_block && self.lock_of(lock.id).is_none() {
            return;
        }
        self.counters.blocking.fetch_add(1, Ordering::Relaxed);
        let flags = if discard { wire::LDLM_FL_DISCARD_DATA } else { 0 };
        let req = dlm_req(flags, 0, blocked, [lock.cookie, lock.id.0].into_iter());
        let reply = export
            .callback(wire::LDLM_BL_CALLBACK, vec![req], self.cancel_timeout(lock.id))
            .await;
        self.handle_ast_reply(&export, &lock, reply).await;
    }

    async fn send_completion(&self, lock: Lock, ast_sent: bool, deadlock: bool) {
        let Some(export) = self.export(lock.holder) else {
            return;
        };
        let state = export.ext::<ExportState>();
        let Ok(_slot) = state.slots.acquire().await else {
            return;
        };
        self.counters.completion.fetch_add(1, Ordering::Relaxed);
        let mut flags = if ast_sent { wire::LDLM_FL_AST_SENT } else { 0 };
        if deadlock {
            flags |= wire::LDLM_FL_FLOCK_DEADLOCK;
        }
        let lvb = match lock.policy.has_value_block() {
            true => self.lvb_for(&export, &lock.res).await,
            false => Bytes::new(),
        };
        let req = dlm_req(flags, 0, lock.desc(), [lock.cookie, lock.id.0].into_iter());
        let reply = export
            .callback(
                wire::LDLM_CP_CALLBACK,
                vec![req, lvb],
                self.cancel_timeout(lock.id),
            )
            .await;
        self.handle_ast_reply(&export, &lock, reply).await;
    }

    /// Handles the reply to a callback. Drops a lock that the client does not know. Evicts the
    /// client after other errors, unless the client is stopping (`ENODEV`, `ESHUTDOWN`) or gone, or
    /// the lock is gone.
    pub(super) async fn handle_ast_reply(
        &self,
        export: &Arc<Export>,
        lock: &Lock,
        reply: Result<Message, RpcError>,
    ) {
        let why = match reply {
            Ok(_) => return,
            Err(RpcError::Status(Errno::EINVAL)) => {
                // The client does not have the lock, or no longer has it.
                self.cancel_if(lock.id, |l| l.holder == lock.holder);
                return;
            }
            Err(RpcError::Status(Errno::ENODEV | Errno::ESHUTDOWN)) => return,
            Err(why) => why,
        };
        if export.is_gone() || self.lock_of(lock.id).is_none() {
            return;
        }
        self.evict(export, &format!("callback for lock {:?} failed: {why}", lock.id))
            .await;
    }

    async fn evict(&self, export: &Arc<Export>, why: &str) {
        self.counters.evicted.fetch_add(1, Ordering::Relaxed);
        export.evict(why).await;
        // `Target::export_gone` has usually dropped the locks already; a second call is harmless.
        self.drop_export(export).await;
    }

    pub(super) fn export(&self, holder: Holder) -> Option<Arc<Export>> {
        self.exports.read().get(&holder).cloned()
    }

    /// How long a client has to reply to a callback for this lock and to cancel the lock.
    pub(super) fn cancel_timeout(&self, id: LockId) -> std::time::Duration {
        self.shards[id.shard()].lock().ns.cancel_timeout()
    }
}
