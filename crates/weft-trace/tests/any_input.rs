//! No input makes a parser panic, loop, or break what a reader promises: the body of the fuzz
//! target over mutations, from a seed, of traces that make sense.

mod exercise;

use weft_testkit::Rng;

fn corpus() -> Vec<Vec<u8>> {
    let texts = [
        "# generated: x\nt_us,dev,offset,size,op\n0.0,0,0,512,R\n1.5,8:1,512,4096,W\n2,0,0,0,F\n",
        "0,303567,3584,w,0.000000\n1,55590,3072,R,0.011413\n2,0,0,r,1.5\n0,9,512,r,0.9\n",
        "128166372003061629,hm,1,Read,383496192,32768,413\n128166372016382155,hm,1,Write,2822144,4096,1\n",
        "BeginHeader\nDiskRead, TimeStamp, Process Name ( PID), ThreadID, IrpPtr, ByteOffset, IOSize, ElapsedTime, DiskNum, FileName\nEndHeader\nDiskRead, 1000, a.exe ( 4), 8, 0xff, 0x0200, 0x400, 100, 2, \"f,\"\nCSwitch, 1, 2\n",
        "64,W,4096,512,1577808000000000\n3,R,0,8192,1577808000000300\n",
        "1538323200,12910952,128,0,1063\n1538323202,0,8,1,7\n",
        "fio version 2 iolog\na add\na open\na write 0 4096\na wait 150 0\na sync 0 0\na trim 0 4096\n",
        "fio version 3 iolog\n0 a add\n10 a write 0 4096\n160 a read 8192 512\n",
        "  8,16 3 4 0.000011950 3645 Q R 4938888 + 256 [java]\n  8,16 3 4 0.1 3645 Q FWS [java]\nCPU0 (8,16):\n",
        "110765 64 0 0\n110829 1 0 1\n7 0 0 2\n",
    ];
    let mut corpus: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    let words = |words: &[u32], order: fn(u32) -> [u8; 4]| -> Vec<u8> {
        words.iter().flat_map(|word| order(*word)).collect()
    };
    let mut srt = b"$$TR_IOREC\ndisks = {\n0 -> {\nsectorsize = 256,\n}\n}\n\x0c".to_vec();
    let record = [56, 0x4_0001, 3, 10, 7, 9, 4096, 100, 0x0800_0008, 4, 1, 0x1b, 0, 1];
    srt.extend(words(&record, u32::to_be_bytes).repeat(3));
    let v1 = [9, 512, 1, 0x0100_002a, 100, 0, 5, 0];
    let v2 = [0x0200_0028, 9, 4096, 1, 8, 0, 7, 0, 77, 0];
    corpus.extend([srt, words(&v1, u32::to_le_bytes).repeat(3)]);
    corpus.push(words(&v2, u32::to_le_bytes).repeat(3));
    corpus
}

#[test]
fn no_input_breaks_a_parser() {
    let mut random = Rng::new(0x5eed);
    let corpus = corpus();
    for bytes in &corpus {
        for end in (0..=bytes.len()).step_by(3) {
            exercise::exercise(&bytes[..end]);
        }
    }
    for round in 0..1_500 {
        let mut bytes = corpus[round % corpus.len()].clone();
        for _ in 0..1 + random.index(6) {
            let at = random.index(bytes.len());
            let other = &corpus[random.index(corpus.len())];
            match random.index(7) {
                0 => bytes[at] = random.next_u64().to_le_bytes()[0],
                1 => bytes[at] ^= 1 << random.index(8),
                2 => bytes.truncate(at.max(1)),
                3 => bytes.insert(at, b"0123456789,.- \n:x"[random.index(17)]),
                4 => {
                    bytes.splice(at..at, other[random.index(other.len())..].to_vec()).for_each(drop)
                }
                5 => bytes.splice(at..at, *b"18446744073709551615").for_each(drop),
                _ => bytes[at] = [0, 0xff, 0x7f, 0x80][random.index(4)],
            }
        }
        exercise::exercise(&bytes);
    }
    for _ in 0..200 {
        let noise: Vec<u8> =
            (0..random.index(200)).map(|_| random.next_u64().to_le_bytes()[0]).collect();
        exercise::exercise(&noise);
    }
}
