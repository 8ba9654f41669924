//! The numbers of `fail_loc` that Nacre implements, with Lustre's names and effects
//! (docs/manual/faults.md). This module is pure.

use super::facts::{Facts, Server};
use wire::{
    Errno, FLD_QUERY, FLD_READ, LDLM_BL_CALLBACK, LDLM_CANCEL, LDLM_CONVERT, LDLM_CP_CALLBACK, LDLM_ENQUEUE,
    LDLM_GL_CALLBACK, LLOG_ORIGIN_HANDLE_CREATE, LLOG_ORIGIN_HANDLE_NEXT_BLOCK,
    LLOG_ORIGIN_HANDLE_PREV_BLOCK, LLOG_ORIGIN_HANDLE_READ_HEADER, MDS_CLOSE, MDS_CONNECT, MDS_DISCONNECT,
    MDS_GET_INFO, MDS_GET_ROOT, MDS_GETATTR, MDS_GETATTR_NAME, MDS_GETXATTR, MDS_QUOTACTL, MDS_READPAGE,
    MDS_REINT, MDS_RMFID, MDS_SET_INFO, MDS_STATFS, MDS_SWAP_LAYOUTS, MDS_SYNC, OBD_PING, OST_CONNECT,
    OST_CREATE, OST_DESTROY, OST_DISCONNECT, OST_FALLOCATE, OST_GET_INFO, OST_GETATTR, OST_LADVISE,
    OST_PUNCH, OST_QUOTACTL, OST_READ, OST_SEEK, OST_SET_INFO, OST_SETATTR, OST_STATFS, OST_SYNC, OST_WRITE,
    REINT_CREATE, REINT_LINK, REINT_SETXATTR, REINT_UNLINK, SEQ_QUERY,
};

/// The step of a request at which something fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The server has received the request.
    Arrival,
    /// The server begins to handle the request; it sends no early reply meanwhile.
    SilentHandling,
    /// The server begins to handle the request.
    Handling,
    /// The server has handled the request.
    Handled,
    /// The server sends the reply.
    Reply,
    /// The server fetches bulk data.
    BulkGet,
    /// The server sends bulk data.
    BulkPut,
    /// The server sends a lock callback.
    SendCallback,
    /// The client has received a lock callback.
    Callback,
    /// The client sends a request.
    Send,
    /// The client has received a reply.
    Received,
}

/// The length of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    /// Milliseconds.
    Ms(u32),
    /// `fail_val` seconds.
    Value,
    /// `fail_val` milliseconds.
    ValueMs,
    /// This many quarters of `obd_timeout`.
    Quarters(u32),
}

/// The effect of a number on a step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// The step does not take place: the request, reply, bulk transfer or callback is lost.
    Drop,
    /// The request fails with this error.
    Fail(Errno),
    /// The step takes place after a pause.
    Wait(Pause),
    /// The request fails with this error after a pause.
    WaitAndFail(Pause, Errno),
}

/// The requests that a number concerns.
#[derive(Clone, Copy, Debug)]
pub(super) enum On {
    Opcodes(&'static [u32]),
    /// Requests with the opcode in `fail_val`.
    OpcodeOfValue,
    /// All requests to a server; if `fail_val` is set, those with this opcode.
    All(Server),
    /// All requests to a server except enqueues and, on an MDT, changes of names and attributes.
    Others(Server),
    EnqueuesAt(Server),
    Reint(u32),
    Intents,
    Opens,
    ExtentLocks,
    OrphanCleanups,
    Replays,
    LockReplays,
    FinalPings,
    /// All requests except a few that must not wait behind others.
    MayWait,
    Everything,
}

/// An action, with its stage and its requests.
#[derive(Debug)]
pub(super) struct Effect {
    pub(super) stage: Stage,
    pub(super) on: On,
    pub(super) action: Action,
    /// Only one use fails, whatever `fail_loc` says.
    pub(super) once: bool,
    /// The value that `fail_loc` gets after a failure; 0: it stays.
    pub(super) next: u32,
}

/// A number.
#[derive(Debug)]
pub(super) struct FailPoint {
    pub(super) number: u16,
    /// Lustre's name, without `OBD_FAIL_`.
    pub(super) name: &'static str,
    /// Empty: Lustre 2.17 does not use the number either, or uses it only between MDTs.
    pub(super) effects: &'static [Effect],
}

impl FailPoint {
    /// The effect on a request at a stage.
    pub(super) fn effect(&self, stage: Stage, facts: &Facts, val: u32) -> Option<(&Effect, Action)> {
        let effect = self
            .effects
            .iter()
            .find(|e| e.stage == stage && e.on.matches(facts, val))?;
        Some((effect, effect.action))
    }

    /// Whether the number has no effect, as in Lustre.
    pub(super) fn is_unused(&self) -> bool {
        self.effects.is_empty()
    }
}

impl On {
    fn matches(self, facts: &Facts, val: u32) -> bool {
        match self {
            On::Opcodes(opcodes) => opcodes.contains(&facts.opc),
            On::OpcodeOfValue => facts.opc == val,
            On::All(server) => facts.server == Some(server) && (val == 0 || val == facts.opc),
            On::Others(server) => {
                let has_own_number = facts.opc == LDLM_ENQUEUE || facts.opc == MDS_REINT;
                facts.server == Some(server) && !has_own_number
            }
            On::EnqueuesAt(server) => facts.server == Some(server) && facts.opc == LDLM_ENQUEUE,
            On::Reint(operation) => facts.reint == operation,
            On::Intents => facts.has_intent,
            On::Opens => facts.opens,
            On::ExtentLocks => facts.locks_extent,
            On::OrphanCleanups => facts.cleans_orphans,
            On::Replays => facts.is_replay(),
            On::LockReplays => facts.is_lock_replay(),
            On::FinalPings => facts.is_final_ping(),
            On::Everything => true,
            On::MayWait => !matches!(
                facts.opc,
                OBD_PING | OST_STATFS | MDS_STATFS | OST_CREATE | OST_DISCONNECT
            ),
        }
    }
}

/// The point with this number.
pub(super) fn find(number: u16) -> Option<&'static FailPoint> {
    let at = POINTS.binary_search_by_key(&number, |point| point.number).ok()?;
    POINTS.get(at)
}

const fn at(stage: Stage, on: On, action: Action) -> Effect {
    let (once, next) = (false, 0);
    Effect {
        stage,
        on,
        action,
        once,
        next,
    }
}

/// Loses one request.
const fn lose_request(on: On) -> Effect {
    Effect {
        once: true,
        ..at(Stage::Arrival, on, Action::Drop)
    }
}

/// Loses one request with one of these opcodes.
const fn lose(opcodes: &'static [u32]) -> Effect {
    lose_request(On::Opcodes(opcodes))
}

/// Loses one reply.
const fn lose_reply(on: On) -> Effect {
    Effect {
        once: true,
        ..at(Stage::Reply, on, Action::Drop)
    }
}

const fn fail(on: On, errno: Errno) -> Effect {
    at(Stage::Handling, on, Action::Fail(errno))
}

const fn wait(on: On, pause: Pause) -> Effect {
    at(Stage::Handling, on, Action::Wait(pause))
}

const fn point(number: u16, name: &'static str, effects: &'static [Effect]) -> FailPoint {
    FailPoint {
        number,
        name,
        effects,
    }
}

use Action::{Drop, Wait, WaitAndFail};
use On::{
    All, EnqueuesAt, Everything, ExtentLocks, FinalPings, Intents, LockReplays, MayWait, OpcodeOfValue,
    Opcodes, Opens, OrphanCleanups, Others, Reint, Replays,
};
use Pause::{Ms, Quarters, Value, ValueMs};
use Server::{Mdt, Mgs, Ost};

const BRW: On = Opcodes(&[OST_READ, OST_WRITE]);
const CONNECTS: On = Opcodes(&[OST_CONNECT, MDS_CONNECT]);

/// All numbers, in order.
#[rustfmt::skip]
pub(super) const POINTS: &[FailPoint] = &[
    point(0x102, "MDS_GETATTR_NET", &[lose(&[MDS_GETATTR])]),
    point(0x103, "MDS_GETATTR_PACK", &[fail(Opcodes(&[MDS_GETATTR]), Errno::ENOMEM)]),
    point(0x104, "MDS_READPAGE_NET", &[lose(&[MDS_READPAGE])]),
    point(0x105, "MDS_READPAGE_PACK", &[fail(Opcodes(&[MDS_READPAGE]), Errno::ENOMEM)]),
    point(0x106, "MDS_SENDPAGE", &[at(Stage::BulkPut, Opcodes(&[MDS_READPAGE]), Drop)]),
    point(0x107, "MDS_REINT_NET", &[lose(&[MDS_REINT])]),
    point(0x10b, "MDS_REINT_CREATE", &[fail(Reint(REINT_CREATE), Errno::ESTALE)]),
    point(0x10d, "MDS_REINT_UNLINK", &[fail(Reint(REINT_UNLINK), Errno::ESTALE)]),
    point(0x10f, "MDS_REINT_LINK", &[fail(Reint(REINT_LINK), Errno::ESTALE)]),
    point(0x114, "MDS_OPEN_PACK", &[fail(Opens, Errno::ENOMEM)]),
    point(0x115, "MDS_CLOSE_NET", &[lose(&[MDS_CLOSE])]),
    point(0x116, "MDS_CLOSE_PACK", &[fail(Opcodes(&[MDS_CLOSE]), Errno::ENOMEM)]),
    point(0x117, "MDS_CONNECT_NET", &[lose(&[MDS_CONNECT])]),
    point(0x119, "MDS_REINT_NET_REP", &[lose_reply(Opcodes(&[MDS_REINT]))]),
    point(0x11a, "MDS_DISCONNECT_NET", &[lose(&[MDS_DISCONNECT])]),
    point(0x11b, "MDS_GET_ROOT_NET", &[lose(&[MDS_GET_ROOT])]),
    point(0x11c, "MDS_GET_ROOT_PACK", &[fail(Opcodes(&[MDS_GET_ROOT]), Errno::ENOMEM)]),
    point(0x11d, "MDS_STATFS_PACK", &[fail(Opcodes(&[MDS_STATFS]), Errno::ENOMEM)]),
    point(0x11e, "MDS_STATFS_NET", &[lose(&[MDS_STATFS])]),
    point(0x11f, "MDS_GETATTR_NAME_NET", &[lose(&[MDS_GETATTR_NAME])]),
    point(0x122, "MDS_ALL_REPLY_NET", &[lose_reply(Others(Mdt))]),
    point(0x123, "MDS_ALL_REQUEST_NET", &[lose_request(All(Mdt))]),
    point(0x124, "MDS_SYNC_NET", &[lose(&[MDS_SYNC])]),
    point(0x125, "MDS_SYNC_PACK", &[fail(Opcodes(&[MDS_SYNC]), Errno::ENOMEM)]),
    point(0x128, "MDS_ALLOC_OBDO", &[fail(Opens, Errno::ENOMEM)]),
    point(0x129, "MDS_PAUSE_OPEN", &[Effect { once: true, ..wait(Opens, Quarters(1)) }]),
    point(0x12b, "MDS_OPEN_CREATE", &[Effect { next: 0x8000_0157, ..fail(Opens, Errno::EAGAIN) }]),
    point(0x12c, "MDS_OST_SETATTR", &[]),
    point(0x12e, "MDS_QUOTACTL_NET", &[lose(&[MDS_QUOTACTL])]),
    point(0x12f, "MDS_CLIENT_ADD", &[fail(Opcodes(&[MDS_CONNECT]), Errno::EOVERFLOW)]),
    point(0x130, "MDS_GETXATTR_NET", &[lose(&[MDS_GETXATTR])]),
    point(0x131, "MDS_GETXATTR_PACK", &[fail(Opcodes(&[MDS_GETXATTR]), Errno::ENOMEM)]),
    point(0x133, "MDS_SETXATTR", &[fail(Reint(REINT_SETXATTR), Errno::ENOMEM)]),
    point(0x136, "MDS_RESEND", &[
        at(Stage::SilentHandling, Intents, Wait(Quarters(8))),
        at(Stage::SilentHandling, Opcodes(&[MDS_GETATTR_NAME]), Wait(Quarters(8))),
    ]),
    point(0x13a, "MDS_LLOG_SYNC_TIMEOUT", &[]),
    point(0x13b, "MDS_CLOSE_NET_REP", &[lose_reply(Opcodes(&[MDS_CLOSE]))]),
    point(0x142, "MDS_REINT_DELAY", &[wait(Opcodes(&[MDS_REINT]), Ms(10_000))]),
    point(0x144, "MDS_OPEN_WAIT_CREATE", &[]),
    point(0x14f, "MDS_SWAP_LAYOUTS_NET", &[lose(&[MDS_SWAP_LAYOUTS])]),
    point(0x157, "MDS_LDLM_REPLY_NET", &[lose_reply(EnqueuesAt(Mdt))]),
    point(0x159, "MDS_REINT_MULTI_NET", &[at(Stage::Arrival, Opcodes(&[MDS_REINT]), Drop)]),
    point(0x15a, "MDS_REINT_MULTI_NET_REP", &[at(Stage::Reply, Opcodes(&[MDS_REINT]), Drop)]),
    point(0x160, "MDS_INTENT_DELAY", &[wait(Intents, Ms(10_000))]),
    point(0x162, "MDS_TRACK_OVERFLOW", &[]),
    point(0x166, "MDS_RMFID_NET", &[lose(&[MDS_RMFID])]),
    point(0x173, "MDS_LOD_CREATE_PAUSE", &[wait(Opens, Value)]),
    point(0x175, "MDS_DELAY_OPEN", &[wait(Opens, Value)]),
    point(0x182, "MDS_SET_INFO_NET", &[lose(&[MDS_SET_INFO])]),
    point(0x186, "MDS_GET_INFO_NET", &[lose(&[MDS_GET_INFO])]),
    point(0x201, "OST_CONNECT_NET", &[lose(&[OST_CONNECT])]),
    point(0x202, "OST_DISCONNECT_NET", &[lose(&[OST_DISCONNECT])]),
    point(0x203, "OST_GET_INFO_NET", &[lose(&[OST_GET_INFO])]),
    point(0x204, "OST_CREATE_NET", &[lose(&[OST_CREATE])]),
    point(0x205, "OST_DESTROY_NET", &[lose(&[OST_DESTROY])]),
    point(0x206, "OST_GETATTR_NET", &[lose(&[OST_GETATTR])]),
    point(0x207, "OST_SETATTR_NET", &[lose(&[OST_SETATTR])]),
    point(0x20a, "OST_BRW_NET", &[lose_request(BRW)]),
    point(0x20b, "OST_PUNCH_NET", &[lose(&[OST_PUNCH])]),
    point(0x20c, "OST_STATFS_NET", &[lose(&[OST_STATFS])]),
    point(0x20e, "OST_BRW_WRITE_BULK", &[fail(Opcodes(&[OST_WRITE]), Errno::EIO)]),
    point(0x20f, "OST_BRW_READ_BULK", &[fail(Opcodes(&[OST_READ]), Errno::EIO)]),
    point(0x210, "OST_SYNC_NET", &[lose(&[OST_SYNC])]),
    point(0x211, "OST_ALL_REPLY_NET", &[lose_reply(Others(Ost))]),
    point(0x212, "OST_ALL_REQUEST_NET", &[lose_request(All(Ost))]),
    point(0x213, "OST_LDLM_REPLY_NET", &[lose_reply(EnqueuesAt(Ost))]),
    point(0x214, "OST_BRW_PAUSE_BULK", &[wait(BRW, Value)]),
    point(0x215, "OST_ENOSPC", &[fail(Opcodes(&[OST_WRITE]), Errno::ENOSPC)]),
    point(0x216, "OST_EROFS", &[
        at(Stage::Handling, Opcodes(&[OST_WRITE]), WaitAndFail(Ms(1000), Errno::EROFS)),
        fail(Opcodes(&[OST_CREATE, OST_DESTROY]), Errno::EROFS),
    ]),
    point(0x217, "SRV_ENOENT", &[fail(Opcodes(&[OST_WRITE]), Errno::ENOENT)]),
    point(0x219, "OST_QUOTACTL_NET", &[lose(&[OST_QUOTACTL])]),
    point(0x21d, "OST_DROP_REQ", &[at(Stage::Reply, BRW, Drop)]),
    point(0x220, "OST_BRW_WRITE_BULK2", &[fail(Opcodes(&[OST_WRITE]), Errno::EFAULT)]),
    point(0x221, "OST_LLOG_RECOVERY_TIMEOUT", &[]),
    point(0x222, "OST_CANCEL_COOKIE_TIMEOUT", &[]),
    point(0x223, "OST_PAUSE_CREATE", &[]),
    point(0x224, "OST_BRW_PAUSE_PACK", &[at(Stage::Handled, Opcodes(&[OST_WRITE]), Wait(Value))]),
    point(0x225, "OST_CONNECT_NET2", &[at(Stage::Reply, Opcodes(&[OST_CONNECT]), Drop)]),
    point(0x227, "OST_BRW_PAUSE_BULK2", &[at(Stage::Handled, Opcodes(&[OST_WRITE]), Wait(Value))]),
    point(0x231, "OST_STATFS_EINPROGRESS", &[fail(Opcodes(&[OST_STATFS]), Errno::EINPROGRESS)]),
    point(0x232, "OST_SET_INFO_NET", &[lose(&[OST_SET_INFO])]),
    point(0x235, "OST_LADVISE_NET", &[lose(&[OST_LADVISE])]),
    point(0x236, "OST_PAUSE_PUNCH", &[wait(Opcodes(&[OST_PUNCH]), Value)]),
    point(0x242, "OST_STATFS_DELAY", &[wait(Opcodes(&[OST_STATFS]), Ms(10_000))]),
    point(0x249, "OST_FALLOCATE_NET", &[lose(&[OST_FALLOCATE])]),
    point(0x24a, "OST_SEEK_NET", &[lose(&[OST_SEEK])]),
    point(0x254, "OST_DELORPHAN_DELAY", &[wait(OrphanCleanups, Value)]),
    point(0x302, "LDLM_ENQUEUE_NET", &[lose(&[LDLM_ENQUEUE])]),
    point(0x303, "LDLM_CONVERT_NET", &[lose(&[LDLM_CONVERT])]),
    point(0x304, "LDLM_CANCEL_NET", &[at(Stage::Arrival, Opcodes(&[LDLM_CANCEL]), Drop)]),
    point(0x305, "LDLM_BL_CALLBACK_NET", &[at(Stage::Callback, Opcodes(&[LDLM_BL_CALLBACK]), Drop)]),
    point(0x306, "LDLM_CP_CALLBACK_NET", &[at(Stage::Callback, Opcodes(&[LDLM_CP_CALLBACK]), Drop)]),
    point(0x307, "LDLM_GL_CALLBACK_NET", &[at(Stage::Callback, Opcodes(&[LDLM_GL_CALLBACK]), Drop)]),
    point(0x308, "LDLM_ENQUEUE_EXTENT_ERR", &[fail(ExtentLocks, Errno::ENOMEM)]),
    point(0x30b, "LDLM_ENQUEUE_BLOCKED", &[wait(Opcodes(&[LDLM_ENQUEUE]), Quarters(8))]),
    point(0x30e, "LDLM_ENQUEUE_OLD_EXPORT", &[fail(Opcodes(&[LDLM_ENQUEUE]), Errno::ENOTCONN)]),
    point(0x31e, "LDLM_BL_EVICT", &[
        at(Stage::Arrival, Opcodes(&[LDLM_CANCEL]), Drop),
        at(Stage::Handled, ExtentLocks, Wait(Ms(6000))),
    ]),
    point(0x324, "LDLM_SRV_BL_AST", &[at(Stage::SendCallback, Opcodes(&[LDLM_BL_CALLBACK]), Drop)]),
    point(0x325, "LDLM_SRV_CP_AST", &[at(Stage::SendCallback, Opcodes(&[LDLM_CP_CALLBACK]), Drop)]),
    point(0x32d, "LDLM_LOCK_REPLAY", &[fail(LockReplays, Errno::ENODEV)]),
    point(0x503, "PTLRPC_BULK_GET_NET", &[at(Stage::BulkGet, MayWait, Drop)]),
    point(0x504, "PTLRPC_BULK_PUT_NET", &[at(Stage::BulkPut, MayWait, Drop)]),
    point(0x505, "PTLRPC_DROP_RPC", &[at(Stage::Send, Everything, Drop)]),
    point(0x506, "PTLRPC_DELAY_SEND", &[at(Stage::Send, Everything, Wait(Quarters(4)))]),
    point(0x507, "PTLRPC_DELAY_RECOV", &[]),
    point(0x50a, "PTLRPC_PAUSE_REQ", &[wait(MayWait, ValueMs)]),
    point(0x50c, "PTLRPC_PAUSE_REP", &[at(Stage::Received, MayWait, Wait(Value))]),
    point(0x513, "PTLRPC_DROP_REQ_OPC", &[at(Stage::Arrival, OpcodeOfValue, Drop)]),
    point(0x516, "PTLRPC_DELAY_IMP_FULL", &[]),
    point(0x517, "PTLRPC_CANCEL_RESEND", &[at(Stage::Arrival, Opcodes(&[LDLM_CANCEL]), Drop)]),
    point(0x535, "PTLRPC_DELAY_SEND_FAIL", &[at(Stage::Send, Opcodes(&[OBD_PING]), Drop)]),
    point(0x536, "PTLRPC_REPLAY_PAUSE", &[at(Stage::Send, Replays, Wait(Value))]),
    point(0x537, "PTLRPC_FAIL_REPLAY", &[wait(LockReplays, Ms(10_000))]),
    point(0x600, "OBD_PING_NET", &[lose(&[OBD_PING])]),
    point(0x701, "TGT_CONN_RACE", &[wait(CONNECTS, Ms(5000))]),
    point(0x703, "TGT_DELAY_CONNECT", &[wait(CONNECTS, Quarters(8))]),
    point(0x704, "TGT_DELAY_RECONNECT", &[wait(CONNECTS, Quarters(8))]),
    point(0x705, "TGT_DELAY_PRECREATE", &[]),
    point(0x707, "TGT_REPLAY_DROP", &[at(Stage::Arrival, Replays, Drop)]),
    point(0x709, "TGT_REPLAY_DELAY", &[wait(Replays, Ms(300))]),
    point(0x711, "TGT_CLIENT_ADD", &[fail(CONNECTS, Errno::ENOSPC)]),
    point(0x714, "TGT_REPLAY_DELAY2", &[wait(Replays, Value)]),
    point(0x715, "TGT_REPLAY_RECONNECT", &[at(Stage::Handled, FinalPings, Wait(Value))]),
    point(0x724, "TGT_RECOVERY_CONNECT", &[fail(CONNECTS, Errno::EAGAIN)]),
    point(0x901, "MGS_ALL_REQUEST_NET", &[lose_request(All(Mgs))]),
    point(0x902, "MGS_ALL_REPLY_NET", &[lose_reply(Others(Mgs))]),
    point(0x90d, "MGS_LDLM_REPLY_NET", &[lose_reply(EnqueuesAt(Mgs))]),
    point(0xb00, "LPROC_REMOVE", &[]),
    point(0x1001, "SEQ_QUERY_NET", &[lose(&[SEQ_QUERY])]),
    point(0x1101, "FLD_QUERY_NET", &[lose(&[FLD_QUERY])]),
    point(0x1102, "FLD_READ_NET", &[lose(&[FLD_READ])]),
    point(0x1302, "LLOG_ORIGIN_HANDLE_CREATE_NET", &[lose(&[LLOG_ORIGIN_HANDLE_CREATE])]),
    point(0x1304, "LLOG_ORIGIN_HANDLE_READ_HEADER_NET", &[lose(&[LLOG_ORIGIN_HANDLE_READ_HEADER])]),
    point(0x1305, "LLOG_ORIGIN_HANDLE_NEXT_BLOCK_NET", &[lose(&[LLOG_ORIGIN_HANDLE_NEXT_BLOCK])]),
    point(0x1306, "LLOG_ORIGIN_HANDLE_PREV_BLOCK_NET", &[lose(&[LLOG_ORIGIN_HANDLE_PREV_BLOCK])]),
    point(0x1310, "MDS_SYNC_CAPA_SL", &[]),
    point(0x2403, "MDS_PAUSE_GETATTR", &[
        wait(Intents, Value),
        wait(Opcodes(&[MDS_GETATTR, MDS_GETATTR_NAME]), Value),
    ]),
];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::{POINTS, find};

    #[test]
    fn numbers_are_in_order_and_found() {
        assert!(POINTS.is_sorted_by(|a, b| a.number < b.number));
        assert_eq!(find(0x119).unwrap().name, "MDS_REINT_NET_REP");
        assert!(find(0x118).is_none());
    }
}
