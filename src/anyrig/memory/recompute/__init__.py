"""Recompute blocks in the backward pass, so that a training step stays within a budget of bytes.

::

    checkpoint_blocks
      ├─ blocks.find_blocks            the candidates
      ├─ measure.StepRunner            runs the step with all blocks recomputed, and with all kept
      │    ├─ step_record              the bytes at each event of a block, the time of recomputation
      │    └─ costs                    what each block saves and costs, and the peak of any choice
      ├─ choose                        the least time within the budget
      └─ forward.recompute_blocks      applies the choice; the step runs again, and verifies it
           └─ buffers                  statistics that count each batch once
"""
