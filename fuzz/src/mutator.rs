//! Mutates inputs of the server targets by whole steps. A change of single bytes often destroys the
//! steps after it, so only a part of the mutations are libFuzzer's own.

use crate::steps::{STEPS_MAX, Step};

/// libFuzzer's mutator: changes the first bytes of a buffer, and returns their new number.
pub type Bytewise = fn(&mut [u8], usize, usize) -> usize;

/// Changes the first `size` bytes of a buffer to at most `size_max`. Returns their number.
pub fn mutate(data: &mut [u8], size: usize, size_max: usize, seed: u32, bytewise: Bytewise) -> usize {
    let mut random = Random(seed);
    let mut steps = Step::read(&data[..size]);
    if steps.is_empty() || random.below(3) == 0 {
        return bytewise(data, size, size_max);
    }
    for _ in 0..1 + random.below(3) {
        change(&mut steps, &mut random);
    }
    let input = Step::write_all(&steps);
    if input.is_empty() || input.len() > size_max {
        return bytewise(data, size, size_max);
    }
    data[..input.len()].copy_from_slice(&input);
    input.len()
}

fn change(steps: &mut Vec<Step>, random: &mut Random) {
    let at = random.below(steps.len().max(1));
    let is_full = steps.len() >= STEPS_MAX;
    match random.below(8) {
        0 if steps.len() > 1 => drop(steps.remove(at)),
        1 if !is_full && !steps.is_empty() => {
            let copy = steps[at].clone();
            steps.insert(random.below(steps.len() + 1), copy);
        }
        2 if !steps.is_empty() => steps.swap(0, at),
        3 | 4 if !is_full => {
            let bytes: [u8; 8] = std::array::from_fn(|i| random.field(i));
            steps.splice(at..at, Step::read(&bytes));
        }
        _ => {
            let field = random.below(6);
            let value = random.field(1 + field);
            let Some(step) = steps.get_mut(at) else { return };
            let fields = [
                &mut step.options,
                &mut step.a,
                &mut step.b,
                &mut step.x,
                &mut step.y,
                &mut step.z,
            ];
            // The length of a message is in `y` and `z`.
            if step.message.is_empty() || field < 4 {
                *fields[field] = value;
            }
        }
    }
}

/// A generator of numbers (xorshift).
struct Random(u32);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 |= 1;
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }

    /// A value for byte `i` of a step: an action, options, mostly small numbers, no changes.
    fn field(&mut self, i: usize) -> u8 {
        let byte = (self.next() >> 8) as u8;
        match i {
            // Few options at a time, and mostly the first two clients.
            1 => (byte & 1) | (1 << (self.next() >> 8 & 7)) & self.next().to_le_bytes()[1],
            2 | 3 if self.below(4) > 0 => byte & 3,
            4..=6 if self.below(3) > 0 => byte & 7,
            7 => 0,
            _ => byte,
        }
    }
}
