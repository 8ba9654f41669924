//! Constants of the protocol under Lustre's names, each declared once in the module of its subject.

pub mod changelog;
pub mod connect;
pub mod fid;
pub mod hsm;
pub mod inode;
pub mod lcfg;
pub mod ldlm;
pub mod llog;
pub mod lmv;
pub mod lnet;
pub mod lov;
pub mod mdt;
pub mod mgs;
pub mod obd;
pub mod opcodes;
pub mod out;
pub mod portals;
pub mod ptlrpc;
pub mod quota;
pub mod srpc;

/// Name and value of every constant of every module.
pub fn all() -> impl Iterator<Item = (&'static str, u64)> {
    [
        changelog::CONSTANTS,
        connect::CONSTANTS,
        fid::CONSTANTS,
        hsm::CONSTANTS,
        inode::CONSTANTS,
        lcfg::CONSTANTS,
        ldlm::CONSTANTS,
        llog::CONSTANTS,
        lmv::CONSTANTS,
        lnet::CONSTANTS,
        lov::CONSTANTS,
        mdt::CONSTANTS,
        mgs::CONSTANTS,
        obd::CONSTANTS,
        opcodes::CONSTANTS,
        out::CONSTANTS,
        portals::CONSTANTS,
        ptlrpc::CONSTANTS,
        quota::CONSTANTS,
        srpc::CONSTANTS,
    ]
    .into_iter()
    .flatten()
    .copied()
}
