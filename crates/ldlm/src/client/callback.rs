//! Callbacks from the server. The client answers a blocking AST at once; it writes back and cancels
//! the lock afterwards.

use super::cache::ALL_BITS;
use super::enqueue::{Completion, Wait};
use super::{CookieState, LockClient, LockCookie};
use crate::policy::Policy;
use crate::request;
use rpc::Reply;
use wire::format::bufs;
use wire::{Errno, LdlmRequest, LdlmResId, Message, WireStruct};

impl LockClient {
    /// Handles `LDLM_BL_CALLBACK`, `LDLM_CP_CALLBACK` and `LDLM_GL_CALLBACK`, for
    /// `ImportOwner::callback`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the lock is unknown, which makes the server drop it; `ELDLM_NO_LOCK_DATA` if a
    /// glimpse finds no dirty data, or arrives before the reply to the lock request; `EPROTO` if
    /// the buffer is too short; `ENOTSUPP` for other callbacks.
    pub async fn ast(&self, opc: u32, msg: Message) -> Result<Reply, Errno> {
        let req = request::parse(msg.buf(bufs::DLM_REQ))?;
        let cookie = LockCookie(req.lock_handle[0]);
        match opc {
            wire::LDLM_BL_CALLBACK => self.blocking_ast(cookie, &req),
            wire::LDLM_CP_CALLBACK => {
                let completion = Completion {
                    desc: req.lock_desc,
                    lvb: msg.bytes(bufs::COMPLETION_LVB),
                    flags: u64::from(req.lock_flags),
                };
                self.completion_ast(cookie, req.lock_handle[1], completion)
            }
            wire::LDLM_GL_CALLBACK => self.glimpse_ast(cookie),
            _ => Err(Errno::ENOTSUPP),
        }
    }

    fn blocking_ast(&self, cookie: LockCookie, req: &LdlmRequest) -> Result<Reply, Errno> {
        let cancel_bits = req.lock_desc.l_policy_data.cancel_bits();
        let discard = u64::from(req.lock_flags) & wire::LDLM_FL_DISCARD_DATA != 0;
        let res = {
            let mut cookies = self.cookie_shard(cookie).lock();
            match cookies.get_mut(&cookie).ok_or(Errno::EINVAL)? {
                CookieState::Pending(pending) if pending.is_of_other_lock(req.lock_handle[1]) => {
                    return Err(Errno::EINVAL);
                }
                CookieState::Pending(pending) => {
                    // The grant has not arrived yet, so the lock's bits are unknown: the client
                    // cancels the whole lock after the first use.
                    pending.handle = req.lock_handle[1];
                    pending.revoked_bits = ALL_BITS;
                    pending.discard |= discard;
                    return Ok(Reply::status(0));
                }
                CookieState::Cached(res) => *res,
            }
        };
        self.revoke(&res, cookie, req.lock_handle[1], cancel_bits, discard)
    }

    fn revoke(
        &self,
        res: &LdlmResId,
        cookie: LockCookie,
        handle: u64,
        cancel_bits: u64,
        discard: bool,
    ) -> Result<Reply, Errno> {
        let mut shard = self.cache_shard(res).lock();
        let lock = shard.find(res, cookie).ok_or(Errno::EINVAL)?;
        if handle != 0 && handle != lock.handle {
            // The callback names the lock of an earlier attempt, which this client never received.
            return Err(Errno::EINVAL);
        }
        lock.revoked_bits |= match lock.policy {
            Policy::Ibits(held) if held.bits & cancel_bits != 0 => cancel_bits,
            _ => ALL_BITS,
        };
        lock.discard |= discard;
        lock.server_waits = true;
        let begin_cancel = lock.can_cancel();
        lock.cancelling |= begin_cancel;
        self.remove_unused(&mut shard, res, cookie);
        drop(shard);
        if begin_cancel {
            self.start_cancelling(vec![(*res, cookie)]);
        }
        Ok(Reply::status(0))
    }

    fn completion_ast(
        &self,
        cookie: LockCookie,
        handle: u64,
        completion: Completion,
    ) -> Result<Reply, Errno> {
        let mut cookies = self.cookie_shard(cookie).lock();
        match cookies.get_mut(&cookie).ok_or(Errno::EINVAL)? {
            CookieState::Pending(pending) if pending.is_of_other_lock(handle) => {
                return Err(Errno::EINVAL);
            }
            CookieState::Pending(pending) => {
                if matches!(pending.wait, Wait::Unknown) {
                    pending.handle = handle;
                }
                pending.completed = Some(completion);
                if let Some(waiter) = pending.waiter.take() {
                    // If the receiver is gone, `PendingEnqueue::drop` cancels the lock.
                    waiter.send(()).ok();
                }
            }
            // A duplicate completion.
            CookieState::Cached(_) => {}
        }
        Ok(Reply::status(0))
    }

    fn glimpse_ast(&self, cookie: LockCookie) -> Result<Reply, Errno> {
        let no_data = Errno(wire::ELDLM_NO_LOCK_DATA as i32);
        let res = match self
            .cookie_shard(cookie)
            .lock()
            .get(&cookie)
            .ok_or(Errno::EINVAL)?
        {
            CookieState::Pending(_) => return Err(no_data),
            CookieState::Cached(res) => *res,
        };
        let info = self
            .with_lock(&res, cookie, |l| l.info(&res))
            .ok_or(Errno::EINVAL)?;
        let lvb = self.owner.glimpse(info).ok_or(no_data)?;
        Ok(Reply::new(vec![lvb.to_bytes()]))
    }
}
