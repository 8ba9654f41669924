//! The language of the inputs of the server targets: a sequence of steps, each a request of one
//! client, or an event such as a lost reply. The small numbers in a step select FIDs, names, locks
//! and objects from short tables, so that inputs often name the same thing twice.

use bytes::Bytes;

/// Maximum number of steps in an input.
pub const STEPS_MAX: usize = 16;
/// Length of the fixed part of a step, bytes.
const STEP_BYTES: usize = 8;

macro_rules! actions {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// The action of a step.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Action { $($(#[$doc])* $name),* }

        impl Action {
            const ALL: &[Action] = &[$(Action::$name),*];
        }
    };
}

actions! {
    /// Sends the message that follows the step.
    Raw,
    /// Creates directory, symbolic link, special file or regular file `b` in `a`.
    Create,
    /// Gives `a` another name, in directory `b`.
    Link,
    /// Removes a name from `a`.
    Unlink,
    /// Moves a name of `a` to a name of `b`.
    Rename,
    /// Changes attributes of `a`.
    SetAttr,
    /// Sets or removes an extended attribute of `a`.
    SetXattr,
    /// Opens a name in `a`, perhaps creating `b`.
    Open,
    /// Closes an open file.
    Close,
    /// Enqueues a lock with an intent.
    Intent,
    /// Reads attributes of `a`, or of the file system.
    Query,
    /// Reads a directory.
    ReadPage,
    /// Requests FID sequences, or their locations in the FLDB.
    Sequence,
    /// Swaps the layouts of `a` and `b`.
    SwapLayouts,
    /// Removes files by their FIDs.
    RemoveFids,
    /// Sets or reads the HSM state.
    Hsm,
    /// Looks up several names.
    Batch,
    /// Sets a property of the client's connection.
    SetInfo,
    /// Enqueues an inode-bits lock.
    LockInode,
    /// Enqueues a flock.
    Flock,
    /// Enqueues an extent lock.
    LockExtent,
    /// Cancels a lock.
    Cancel,
    /// Converts a lock, which gives up some of its bits.
    Convert,
    /// Reads or writes an object.
    Transfer,
    /// Changes or queries an object.
    Object,
    /// Queries or sets a property of the OST.
    ObjectInfo,
    /// Disconnects from a target.
    Disconnect,
    /// Connects to a target, again or as a restarted client.
    Connect,
    /// Sends an earlier request again.
    Resend,
    /// Advances virtual time.
    Wait,
    /// Chooses how the client answers lock callbacks from now on.
    Answer,
    /// Chooses the fate of the next message.
    Network,
}

/// A change of a request after it has been built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutation {
    /// The buffer, modulo their number.
    pub buffer: u8,
    /// The position in the buffer, modulo its length.
    pub at: u8,
    /// The kind of change.
    pub how: u8,
    /// The byte to write, or the bit to flip.
    pub value: u8,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The action.
    pub action: Action,
    /// A combination of [`options`], and the client in the lowest two bits.
    pub options: u8,
    /// The first FID.
    pub a: u8,
    /// The second FID.
    pub b: u8,
    /// Parameters of the action.
    pub x: u8,
    /// See `x`.
    pub y: u8,
    /// See `x`.
    pub z: u8,
    /// Changes of the request.
    pub mutations: Vec<Mutation>,
    /// The message of a [`Action::Raw`].
    pub message: Bytes,
}

/// Options of a step.
pub mod options {
    /// Mask of the client's number.
    pub const CLIENT: u8 = 3;
    /// Do not wait for the reply.
    pub const NO_WAIT: u8 = 4;
    /// The request has `MSG_RESENT`.
    pub const RESENT: u8 = 8;
    /// The request has `MSG_REPLAY`.
    pub const REPLAY: u8 = 16;
    /// The request has a short `pb_timeout`.
    pub const SHORT_TIMEOUT: u8 = 32;
    /// The request uses a slot (`pb_tag`).
    pub const TAG: u8 = 64;
    /// The client changes only the handle in the body of a raw message.
    pub const KEEP_BODY: u8 = 128;
}

impl Step {
    /// A step of the first client without further parameters.
    pub fn new(action: Action) -> Step {
        Step {
            action,
            options: 0,
            a: 0,
            b: 0,
            x: 0,
            y: 0,
            z: 0,
            mutations: Vec::new(),
            message: Bytes::new(),
        }
    }

    /// Sets the client and options.
    pub fn by(mut self, options: u8) -> Step {
        self.options = options;
        self
    }

    /// Sets the FIDs.
    pub fn on(mut self, a: u8, b: u8) -> Step {
        (self.a, self.b) = (a, b);
        self
    }

    /// Sets the parameters.
    pub fn with(mut self, x: u8, y: u8, z: u8) -> Step {
        (self.x, self.y, self.z) = (x, y, z);
        self
    }

    /// The step that sends a message to a portal of a target.
    pub fn raw(to_ost: bool, portal: u8, message: Bytes) -> Step {
        let len = u16::try_from(message.len())
            .expect("seeds are short")
            .to_le_bytes();
        let step = Step::new(Action::Raw).on(portal, to_ost.into());
        Step {
            message,
            ..step.with(0, len[0], len[1])
        }
    }

    /// Splits an input into its steps, at most [`STEPS_MAX`].
    pub fn read(mut input: &[u8]) -> Vec<Step> {
        let mut all = Vec::new();
        while let Some((&[action, options, a, b, x, y, z, changes], rest)) = input.split_first_chunk()
            && all.len() < STEPS_MAX
        {
            let action = Action::ALL[usize::from(action) % Action::ALL.len()];
            let (changed, rest) = rest.split_at(rest.len().min(usize::from(changes & 3) * 4));
            let mutation = |m: &[u8; 4]| {
                let [buffer, at, how, value] = *m;
                Mutation {
                    buffer,
                    at,
                    how,
                    value,
                }
            };
            let len = match action {
                Action::Raw => usize::from(u16::from_le_bytes([y, z])).min(rest.len()),
                _ => 0,
            };
            let (message, rest) = rest.split_at(len);
            all.push(Step {
                action,
                options,
                a,
                b,
                x,
                y,
                z,
                mutations: changed.as_chunks().0.iter().map(mutation).collect(),
                message: Bytes::copy_from_slice(message),
            });
            input = rest;
        }
        all
    }

    /// Appends the step to an input.
    pub fn write(&self, input: &mut Vec<u8>) {
        let action = Action::ALL.iter().position(|action| *action == self.action);
        let action = action.unwrap_or(0) as u8;
        let changes = self.mutations.len().min(3);
        input.extend([
            action,
            self.options,
            self.a,
            self.b,
            self.x,
            self.y,
            self.z,
            changes as u8,
        ]);
        for m in &self.mutations[..changes] {
            input.extend([m.buffer, m.at, m.how, m.value]);
        }
        input.extend(&self.message);
    }

    /// An input of these steps.
    pub fn write_all(steps: &[Step]) -> Vec<u8> {
        let mut input = Vec::with_capacity(steps.len() * STEP_BYTES);
        steps.iter().for_each(|step| step.write(&mut input));
        input
    }
}
