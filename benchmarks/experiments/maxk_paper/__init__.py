"""The experiments of MaxK-GNN: `python examples/maxk_paper.py --all`.

published  the paper's figures
store      the results in one file, and what is left of the time
worker     the processes that measure: training steps and single operations
steps      Table 5's times
scores     Table 5's scores, and the curves of Figures 9 and 10
kernels    Figure 8 and Table 4
counters   Table 2, under Nsight Compute
report     the tables, ours beside the paper's
"""
