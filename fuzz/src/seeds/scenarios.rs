//! Inputs built by hand: useful sequences of requests, and requests that name the same object twice
//! although they expect two different ones.

use crate::steps::{Action, Step, options};

/// The second client, and the client with the rights of a server.
const B: u8 = 1;
const SERVER: u8 = 2;
/// FIDs: the input's directory, the first FID of the second client, the root.
const DIR: u8 = 0;
const OF_B: u8 = 7;
const ROOT: u8 = 12;
/// Kinds of new inodes.
const DIRECTORY: u8 = 0;
const FILE: u8 = 1;
const SYMLINK: u8 = 2;
const FIFO: u8 = 3;
/// Flags of an open: read and write (`z`), create (`y`).
const READ_WRITE: u8 = 3;
const CREATE: u8 = 1;

/// All inputs by target.
pub(super) fn all() -> Vec<(&'static str, Vec<u8>)> {
    let mut inputs = Vec::new();
    let mut add = |target, steps: &[Step]| {
        inputs.push((target, Step::write_all(steps)));
        // Each single step is also a seed.
        inputs.extend(
            steps
                .iter()
                .map(|step| (target, Step::write_all(std::slice::from_ref(step)))),
        );
    };
    for steps in [directories(), files(), attributes(), queries(), leases()] {
        add("mdt", &steps);
    }
    for steps in equal_fids().into_iter().chain(resends()) {
        add("mdt", &steps);
    }
    for steps in [inode_locks(), flocks(), extents()]
        .into_iter()
        .chain(callbacks())
    {
        add("ldlm", &steps);
    }
    for steps in [data(), objects(), shared_data()] {
        add("ost", &steps);
    }
    inputs
}

fn make(dir: u8, fid: u8, name: u8, kind: u8) -> Step {
    Step::new(Action::Create).on(dir, fid).with(name, kind, 0)
}

fn open(dir: u8, fid: u8, name: u8) -> Step {
    Step::new(Action::Open)
        .on(dir, fid)
        .with(name, CREATE, READ_WRITE)
}

fn rename(from: u8, to: u8, name: u8, new_name: u8) -> Step {
    Step::new(Action::Rename).on(from, to).with(name, new_name, 0)
}

fn link(fid: u8, dir: u8, name: u8) -> Step {
    Step::new(Action::Link).on(fid, dir).with(name, 0, 0)
}

fn unlink(dir: u8, fid: u8, name: u8, is_dir: bool) -> Step {
    Step::new(Action::Unlink)
        .on(dir, fid)
        .with(name, 0, is_dir.into())
}

fn lock_inode(fid: u8, mode: u8) -> Step {
    Step::new(Action::LockInode).on(fid, 0).with(mode, 3, 0)
}

fn answer(n: u8) -> Step {
    Step::new(Action::Answer).with(n, 0, 0)
}

fn wait(exponent: u8) -> Step {
    Step::new(Action::Wait).with(exponent, 0, 0)
}

fn directories() -> Vec<Step> {
    vec![
        make(DIR, 1, 0, DIRECTORY),
        make(1, 2, 1, SYMLINK),
        make(1, 3, 0, FIFO),
        link(3, DIR, 2),
        rename(1, DIR, 0, 1),
        Step::new(Action::ReadPage).on(1, 0).with(12, 0, 0),
        unlink(1, 2, 1, false),
        unlink(DIR, 1, 0, true),
        make(DIR, OF_B, 0, DIRECTORY).by(B),
    ]
}

fn files() -> Vec<Step> {
    let mut steps = vec![
        open(DIR, 1, 0),
        Step::new(Action::Close).on(1, 1),
        Step::new(Action::Open)
            .on(DIR, 2)
            .with(1, CREATE | 0x40, READ_WRITE | 0x10),
        Step::new(Action::Close).on(2, 2),
        unlink(DIR, 1, 0, false),
    ];
    let intents = [(DIR, 0, 0), (DIR, 2, 1), (1, 0, 2), (1, 0, 3), (DIR, 0, 4)];
    steps.extend(intents.map(|(fid, name, kind)| Step::new(Action::Intent).on(fid, 0).with(name, kind, 0)));
    steps
}

fn leases() -> Vec<Step> {
    vec![
        open(DIR, 1, 0),
        // A lease, and an open by FID of another client.
        Step::new(Action::Open).on(1, 1).with(3, 0x90, READ_WRITE),
        Step::new(Action::Open).on(1, 1).with(3, 0x80, READ_WRITE).by(B),
        // A volatile file.
        Step::new(Action::Open)
            .on(DIR, 2)
            .with(0, CREATE | 0x20, READ_WRITE),
        Step::new(Action::SwapLayouts).on(1, 2),
        Step::new(Action::Close).on(1, 2).with(1, 0, 4),
        Step::new(Action::Hsm).on(1, 0).with(1, 1, 7),
        Step::new(Action::Hsm).on(1, 0),
    ]
}

fn attributes() -> Vec<Step> {
    let mut steps = vec![
        make(DIR, 1, 0, DIRECTORY),
        Step::new(Action::SetAttr).on(1, 0).with(0x47, 0xed, 0),
        Step::new(Action::SetAttr).on(1, 0).with(0x78, 4, 0),
    ];
    let xattrs = [(0, 100), (1, 0), (2, 1), (3, 1), (4, 3)];
    steps.extend(xattrs.map(|(name, value)| Step::new(Action::SetXattr).on(1, 0).with(name, value, 0)));
    steps.extend([5, 6].map(|kind| Step::new(Action::Query).on(1, 0).with(2, kind, 0)));
    steps.push(open(1, 2, 1));
    steps
}

fn queries() -> Vec<Step> {
    let queries = (0..9).map(|kind| Step::new(Action::Query).on(DIR, ROOT).with(5, kind, 0));
    let sequences = [(0, 2, 0), (1, 1, 0), (2, 1, 3)];
    let sequences = sequences.map(|(x, y, z)| Step::new(Action::Sequence).on(1, 0).with(x, y, z));
    let batch = Step::new(Action::Batch).on(DIR, 1).with(0, 0, 2);
    let read_only = Step::new(Action::SetInfo).with(1, 0, 0);
    queries.chain(sequences).chain([batch, read_only]).collect()
}

/// Requests with equal FIDs, or with the FIDs of a directory and of its ancestor.
fn equal_fids() -> Vec<Vec<Step>> {
    let dirs = [make(DIR, 1, 0, DIRECTORY), make(1, 2, 1, DIRECTORY)];
    let file = [make(DIR, 1, 0, FILE), link(1, DIR, 1)];
    let after = |first: &[Step], more: &[Step]| [first, more].concat();
    let hurried = |step: Step, client| step.by(client | options::NO_WAIT);
    vec![
        // Links: of a directory in itself, of a file in itself.
        after(&dirs, &[link(DIR, DIR, 0), link(1, 1, 2), link(2, 1, 1)]),
        after(&file, &[link(1, 1, 2), link(1, DIR, 0)]),
        // Renames onto itself: the same name, and another name of the same file.
        after(&file, &[rename(DIR, DIR, 0, 0), rename(DIR, DIR, 0, 1)]),
        after(&dirs, &[rename(1, 1, 1, 1), rename(DIR, DIR, 0, 0)]),
        // Renames of a directory into itself, into a descendant, and over an ancestor.
        after(
            &dirs,
            &[rename(DIR, 1, 0, 0), rename(DIR, 2, 0, 0), rename(1, DIR, 1, 0)],
        ),
        after(
            &dirs,
            &[rename(DIR, 1, 0, 4), rename(1, 1, 5, 4), rename(2, 2, 5, 0)],
        ),
        // New inodes with the FID of their directory, or one in use.
        after(
            &dirs,
            &[make(1, 1, 2, DIRECTORY), make(1, DIR, 2, FILE), open(1, 1, 2)],
        ),
        after(
            &dirs,
            &[
                unlink(1, 1, 1, true),
                unlink(DIR, DIR, 0, true),
                unlink(2, 1, 5, true),
            ],
        ),
        after(
            &file,
            &[
                Step::new(Action::SwapLayouts).on(1, 1),
                Step::new(Action::RemoveFids).on(1, 1),
                Step::new(Action::RemoveFids).on(DIR, 1),
            ],
        ),
        // Two clients move directories into each other.
        after(
            &[make(DIR, 1, 0, DIRECTORY), make(DIR, 2, 1, DIRECTORY)],
            &[
                lock_inode(1, 0).by(B),
                hurried(rename(DIR, 1, 1, 0), 0),
                hurried(rename(DIR, 2, 0, 0), B),
                wait(1),
            ],
        ),
    ]
}

/// Lost messages, requests that are sent again, connections that are opened again.
fn resends() -> Vec<Vec<Step>> {
    let lose = |fate| Step::new(Action::Network).with(fate, 0, 0);
    let resend = Step::new(Action::Resend);
    let reconnect = Step::new(Action::Connect).with(0, 1, 0);
    let restart = Step::new(Action::Connect).with(0, 0, 0);
    let mut all = Vec::new();
    for fate in 1..=5 {
        all.push(vec![
            make(DIR, 1, 0, DIRECTORY).by(options::TAG),
            lose(fate),
            make(1, 2, 0, FILE).by(options::TAG),
            reconnect.clone(),
            resend.clone(),
            resend.clone().with(1, 2, 0),
            unlink(1, 2, 0, false),
        ]);
    }
    all.push(vec![
        open(DIR, 1, 0),
        lock_inode(1, 0),
        Step::new(Action::Disconnect),
        resend.clone(),
        restart,
        resend,
        open(DIR, 2, 1),
        Step::new(Action::Disconnect).with(1, 0, 0),
    ]);
    all
}

fn inode_locks() -> Vec<Step> {
    let mut steps = Vec::new();
    for (slot, mode) in [0, 4, 2].into_iter().enumerate() {
        steps.push(lock_inode(DIR, mode));
        steps.push(Step::new(Action::Convert).on(DIR, mode).with(slot as u8, 1, 0));
        steps.push(Step::new(Action::Cancel).on(DIR, mode).with(slot as u8, 0, 0));
    }
    steps.push(lock_inode(DIR, 2));
    steps.push(lock_inode(DIR, 2).by(B));
    steps
}

fn flocks() -> Vec<Step> {
    let flock = |client, fid, mode, start, end, owner_and_flags| {
        Step::new(Action::Flock)
            .on(fid, start)
            .with(mode, end, owner_and_flags)
            .by(client)
    };
    vec![
        flock(0, DIR, 1, 0, 99, 0x10),
        flock(0, DIR, 0, 100, 0xff, 0x10),
        flock(B, DIR, 1, 50, 60, 0x21),
        flock(B, DIR, 1, 50, 60, 0x22),
        // A deadlock of two owners.
        flock(B, ROOT, 1, 0, 99, 0x20),
        flock(B, DIR, 1, 0, 99, 0x20),
        flock(0, ROOT, 1, 0, 99, 0x10),
        flock(0, DIR, 5, 10, 20, 0x10),
        flock(0, DIR, 5, 0, 0xff, 0x10),
    ]
}

fn lock_extent(client: u8, mode: u8, start: u8, end: u8, flags: u8) -> Step {
    Step::new(Action::LockExtent)
        .on(0, start)
        .with(mode, end, flags)
        .by(client)
}

fn extents() -> Vec<Step> {
    vec![
        open(DIR, 1, 0),
        lock_extent(0, 0, 0, 2, 0),
        lock_extent(B, 1, 4, 0xff, 0),
        lock_extent(0, 0, 0, 0xff, 4),
        lock_extent(B, 1, 0, 0xff, 0),
        lock_extent(0, 6, 0, 0xff, 0),
        Step::new(Action::Cancel).with(1, 0x80, 1),
        lock_extent(B, 0, 0, 0xff, 8),
    ]
}

/// A client holds a lock that another one needs, with each kind of answer to the callback.
fn callbacks() -> Vec<Vec<Step>> {
    let kinds = (0..6).flat_map(|kind| {
        let held = [answer(kind), lock_inode(DIR, 2)];
        let wanted = [make(DIR, OF_B, 0, DIRECTORY).by(B), lock_inode(DIR, 0).by(B)];
        let conflict = [&held[..], &wanted, &[wait(10)]].concat();
        let object = [
            answer(kind),
            open(DIR, 1, 0),
            lock_extent(0, 1, 0, 0xff, 0),
            lock_extent(B, 0, 0, 0xff, 4),
            lock_extent(B, 1, 0, 0xff, 0),
            wait(10),
        ];
        [conflict, object.into()]
    });
    // The waiter or the lock holder disconnects.
    let waits = make(DIR, OF_B, 0, DIRECTORY).by(B | options::NO_WAIT);
    let leaves = [0, B].map(|client| {
        let leave = Step::new(Action::Disconnect).by(client);
        vec![
            answer(4),
            lock_inode(DIR, 2),
            waits.clone(),
            leave,
            wait(2),
            lock_inode(DIR, 2).by(B),
        ]
    });
    kinds.chain(leaves).collect()
}

fn transfer(client: u8, position: u8, len: u8, flags: u8) -> Step {
    Step::new(Action::Transfer).with(position, len, flags).by(client)
}

fn data() -> Vec<Step> {
    let operations = [0, 1, 2, 3, 4, 5];
    let operations = operations.map(|kind| Step::new(Action::Object).on(0, 3).with(0, 0xf0, kind));
    [
        vec![
            open(DIR, 1, 0),
            transfer(0, 0, 5, 0),
            transfer(0, 0, 0x80, 1),
            transfer(0, 1, 0x80, 7),
        ],
        operations.into(),
        vec![transfer(0, 0, 0x80, 0x2e), transfer(0, 0, 0x80, 0x2f)],
    ]
    .concat()
}

fn shared_data() -> Vec<Step> {
    vec![
        open(DIR, 1, 0),
        lock_extent(0, 1, 0, 0xff, 0),
        transfer(0, 0, 200, 2),
        lock_extent(B, 0, 0, 0xff, 0),
        transfer(B, 0, 200, 3),
        Step::new(Action::Object).with(0, 0xff, 1).by(B),
        Step::new(Action::ObjectInfo).with(3, 0, 0),
        unlink(DIR, 1, 0, false),
        transfer(0, 0, 200, 2),
    ]
}

fn objects() -> Vec<Step> {
    let info = (0..5).map(|kind| Step::new(Action::ObjectInfo).with(kind, 0, 0));
    let operation = |kind, b| Step::new(Action::Object).on(0, b).with(0, 0, kind).by(SERVER);
    let more = [
        operation(6, 100),
        operation(7, 0),
        operation(7, 0),
        operation(8, 0),
    ];
    let sequence = Step::new(Action::Sequence).with(3, 2, 0).by(SERVER);
    std::iter::once(open(DIR, 1, 0))
        .chain(info)
        .chain(more)
        .chain([sequence])
        .collect()
}
